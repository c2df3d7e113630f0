// SPDX-License-Identifier: Apache-2.0
// The first byte chooses: any bytes as text for a small tokenizer, or any bytes as a tokenizer.json.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "text/synthetic/tokenizer_training.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/encode_cache.h"
#include "text/tokenizer/tokenizer.h"

namespace {

using namespace sparrow;

constexpr std::string_view kCorpus =
    "The tokenizer reads the text from left to right, and the text comes back from the tokens. It's what "
    "they'd say. "
    "for (int i = 0; i < size; ++i) sum += values[i];\n\n\tif (sum == 0) return;\n    return sum / size; // "
    "1234567\n";

Tokenizer make_tokenizer() {
  std::string corpus;
  for (int i = 0; i < 4; ++i) corpus += kCorpus;
  auto tokenizer = Tokenizer::parse(train_tokenizer(corpus, 512).value());
  SPARROW_CHECK(tokenizer.ok());
  return std::move(tokenizer).value();
}

void check_text(const Tokenizer& tokenizer, std::string_view text) {
  const std::string valid = replace_invalid_utf8(text);
  for (const Recognise recognise : {Recognise::kAll, Recognise::kNotSpecial, Recognise::kNone}) {
    const std::vector<int32_t> ids = tokenizer.encode(text, recognise).value();
    SPARROW_CHECK(tokenizer.decode(ids).value() == valid);
    Detokenizer stream(tokenizer, /*skip_special=*/false);
    std::string streamed;
    for (const int32_t id : ids) SPARROW_CHECK(stream.push(id, streamed).ok());
    stream.finish(streamed);
    SPARROW_CHECK(streamed == valid);
  }
}

// Two turns that share a start: the second one must not notice what the cache knows of the first.
void check_cache(const Tokenizer& tokenizer, std::string_view text) {
  std::string start;
  while (start.size() < 2500) start += kCorpus;
  start += text.substr(0, text.size() / 2);
  EncodeCache cache(tokenizer);
  (void)cache.encode(start);
  const std::string next = start + std::string(text.substr(text.size() / 2));
  SPARROW_CHECK(cache.encode(next).value() == tokenizer.encode(next).value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer tokenizer = make_tokenizer();
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == '{') {
    const auto parsed = Tokenizer::parse({reinterpret_cast<const char*>(data), size});
    if (parsed.ok())
      (void)parsed.value().encode("text <think>\n123");
    else
      SPARROW_CHECK(!parsed.error().message.empty());
    return 0;
  }
  check_text(tokenizer, rest);
  check_cache(tokenizer, rest);
  return 0;
}
