// SPDX-License-Identifier: Apache-2.0
// Any bytes as the body of every request that has one. What is refused is refused in words; what is accepted
// must be fit for the engine, keep its constraint to ids that exist, and end in an answer that is JSON,
// whatever the model says.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/json/json.h"
#include "server/anthropic/messages.h"
#include "server/openai/generation.h"
#include "server/openai/prepare.h"
#include "server/responses/responses.h"
#include "text/synthetic/synthetic_template.h"
#include "text/synthetic/tokenizer_training.h"

namespace {

using namespace sparrow;

constexpr int kVocab = 400;
constexpr RequestLimits kLimits{.vocab_size = kVocab, .max_model_tokens = 4096, .cache_tokens = 8192};

struct Served {
  Served() { tokenizer.reserve_ids(kVocab); }

  Tokenizer tokenizer =
      Tokenizer::parse(train_tokenizer("the quick brown fox jumps over the lazy dog", kVocab).value(),
                       trained_tokenizer_config())
          .value();
  EncodeCache cache{tokenizer};
  ConstraintStore constraints{tokenizer, kVocab};
  ChatTemplate chat_template = ChatTemplate::parse(synthetic_chat_template()).value();
  openai::ServedModel model{.names = {"m3"},
                            .tokenizer = tokenizer,
                            .encode_cache = cache,
                            .chat_template = &chat_template,
                            .defaults = {.vocab_size = kVocab, .max_model_tokens = 4096, .max_logprobs = 20},
                            .constraints = &constraints};
};

void check_refused(const Error& error) {
  SPARROW_CHECK(!error.message.empty());
  SPARROW_CHECK(error.code != Errc::kIo && error.code != Errc::kBusy && error.code != Errc::kStopped);
}

// The next id of an output: any that is allowed.
int32_t draw(TokenConstraint* constraint, uint64_t& random) {
  random = random * 6364136223846793005u + 1442695040888963407u;
  const auto any = static_cast<uint32_t>(random >> 33);
  if (!constraint) return static_cast<int32_t>(any % kVocab);
  const NextIds next = constraint->next_ids();
  std::vector<int32_t> ids(next.allowed.begin(), next.allowed.end());
  for (int32_t bit = 0; bit < kVocab && !next.mask.empty(); ++bit)
    if (next.mask[bit / 32] >> (bit % 32) & 1) ids.push_back(bit);
  const int32_t id = ids.empty() ? static_cast<int32_t>(any % kVocab) : ids[any % ids.size()];
  SPARROW_CHECK(id >= 0 && id < kVocab);
  constraint->advance(id);
  return id;
}

void check_events(std::string_view stream) {
  while (!stream.empty()) {
    const size_t data = stream.starts_with("event: ") ? stream.find('\n') + 1 : 0;
    SPARROW_CHECK(stream.substr(data).starts_with("data: "));
    const size_t begin = data + 6, end = stream.find("\n\n");
    SPARROW_CHECK(end != stream.npos);
    SPARROW_CHECK(JsonDocument::parse(stream.substr(begin, end - begin), "an event").ok());
    stream.remove_prefix(end + 2);
  }
}

// Some tokens for every output, and its end.
void answer(const openai::ServedModel& model, std::unique_ptr<openai::Prepared> prepared, uint64_t random) {
  const Request request = prepared->request;
  openai::Generation generation(model, std::move(prepared), "r1");
  std::string out;
  for (int output = 0; output < request.num_outputs(); ++output) {
    const auto constraint = request.constraint ? request.constraint->copy() : nullptr;
    bool goes_on = true;
    for (int64_t i = 0, count = 1 + static_cast<int64_t>(random % 12); goes_on && i < count; ++i) {
      TokenEvent event{.output = output};
      if (request.max_tokens > 0) event.id = draw(constraint.get(), random);
      if (event.id && request.logprobs) event.logprobs = {.token = {*event.id, -1.0f}, .top = {{3, -0.5f}}};
      if (i + 1 == count || request.max_tokens == 0) event.finish = FinishReason::kLength;
      goes_on = generation.take(std::move(event));
      if (generation.streams()) generation.append_chunks(out);
    }
  }
  SPARROW_CHECK(generation.finished());
  check_events(out);
  if (!generation.streams()) SPARROW_CHECK(JsonDocument::parse(generation.response(), "an answer").ok());
}

void complete(const openai::ServedModel& model, const openai::Api& api, std::string_view body) {
  auto prepared = openai::prepare(api, body, model);
  if (!prepared.ok()) return check_refused(prepared.error());
  const Request& request = (*prepared)->request;
  SPARROW_CHECK(!request.prompts.empty());
  if (const Status valid = validate(request, kLimits); !valid.ok()) return check_refused(valid.error());
  if (request.num_outputs() > 64) return;  // true, and slow
  answer(model, std::move(prepared).value(), body.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Served served;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  complete(served.model, openai::kChatApi, body);
  complete(served.model, openai::kCompletionApi, body);
  complete(served.model, responses::kResponsesApi, body);
  complete(served.model, anthropic::kMessagesApi, body);
  for (const openai::Api* api : {&openai::kTokenizeApi, &anthropic::kCountApi, &responses::kCountApi}) {
    const auto counted = openai::prepare(*api, body, served.model);
    if (!counted.ok()) check_refused(counted.error());
    if (counted.ok()) SPARROW_CHECK(JsonDocument::parse(counted.value()->counted, "ids").ok());
  }
  const auto text = openai::detokenize(body, served.model);
  if (!text.ok()) check_refused(text.error());
  if (text.ok()) SPARROW_CHECK(JsonDocument::parse(text.value(), "a text").ok());
  return 0;
}
