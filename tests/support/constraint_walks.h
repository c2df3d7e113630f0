// SPDX-License-Identifier: Apache-2.0
// Constraints for tests: a small vocabulary, texts that fit or not, and random walks along masks.
#pragma once

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "text/constraint/constraint.h"
#include "text/constraint/schema/json_schema.h"

namespace sparrow::testing {

// All bytes, and pieces of JSON, words and other characters that begin and end anywhere.
inline std::shared_ptr<const Vocabulary> small_vocabulary() {
  static const auto made = [] {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    for (const char* piece :
         {"ab",       "abc",      "the",   " the",  "a\"", "\":", "\": ", "\",",  "\", \"", "{\"",  "\"}",
          "}}",       "]}",       "[[",    "[{",    "12",  "123", "00",   "-1",   "0.",     ".5",   "e1",
          "tr",       "true",     "false", "null",  "nul", ",\n", "\n  ", "  ",   "é",      "\xC3", "日本",
          "\xE6\x97", "\\n",      "\\\"",  "\\u00", "x\\", "}",   "{",    "true", "--",     "foo",  "bar",
          "\"foo",    "\"bar\":", "20",    "25",    "-0",  "T1",  "Z\""})
      tokens.emplace_back(piece);
    tokens.emplace_back();  // cannot be written
    return std::make_shared<const Vocabulary>(tokens);
  }();
  return made;
}

inline Result<std::shared_ptr<Constraint>> held_to(const Json& schema, ValueStyle style) {
  auto grammar = std::make_shared<Grammar>();
  const NodeId root = SPARROW_TRY(add_schema(*grammar, schema, style));
  SPARROW_TRY(grammar->finish(root));
  return Constraint::create(grammar, small_vocabulary());
}

inline std::vector<uint32_t> mask_of(Matcher& matcher) {
  std::vector<uint32_t> bits(matcher.constraint().vocabulary().num_words());
  matcher.write_mask(bits);
  return bits;
}

inline std::vector<int32_t> ids_of(const std::vector<uint32_t>& bits) {
  std::vector<int32_t> ids;
  for (size_t id = 0; id < bits.size() * 32; ++id)
    if (bits[id / 32] >> (id % 32) & 1) ids.push_back(static_cast<int32_t>(id));
  return ids;
}

// Random tokens of the masks until the text ends; nullopt: it did not, in so many.
inline std::optional<std::string> random_text(const std::shared_ptr<Constraint>& constraint, unsigned seed,
                                              int max_tokens = 4000) {
  std::minstd_rand random(seed * 7919 + 1);
  for (unsigned skip = 0; skip < 3; ++skip) random();
  Matcher matcher(constraint);
  std::string text;
  for (int i = 0; i < max_tokens; ++i) {
    if (matcher.must_end() || (matcher.may_end() && random() % 4 == 0)) return text;
    const std::vector<int32_t> ids = ids_of(mask_of(matcher));
    if (ids.empty()) return std::nullopt;
    const int32_t id = ids[random() % ids.size()];
    text += matcher.constraint().vocabulary().bytes_of(id);
    if (!matcher.advance(id)) return std::nullopt;
  }
  return std::nullopt;
}

inline bool fits(const std::shared_ptr<Constraint>& constraint, std::string_view text) {
  Matcher matcher(constraint);
  return (text.empty() || matcher.advance(text)) && matcher.may_end();
}

}  // namespace sparrow::testing
