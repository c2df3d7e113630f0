// SPDX-License-Identifier: Apache-2.0
// What holds for every constraint that was made: it can be followed, and never runs into a dead end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "text/constraint/constraint.h"

namespace sparrow {

inline std::shared_ptr<const Vocabulary> fuzz_vocabulary() {
  static const auto made = [] {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    for (const char* piece : {"ab", "abc", " the", "a\"", "\":", "\",", "{\"", "\"}", "}}", "12", "0.",
                              "true", "é", "\xE6\x97", "\\n", "\\u00"})
      tokens.emplace_back(piece);
    return std::make_shared<const Vocabulary>(tokens);
  }();
  return made;
}

// Follows a few random walks along the masks.
inline void follow(std::shared_ptr<const Grammar> grammar, uint64_t random) {
  auto made = Constraint::create(std::move(grammar), fuzz_vocabulary());
  if (!made.ok()) {
    SPARROW_CHECK(!made.error().message.empty());
    return;
  }
  std::vector<uint32_t> bits(fuzz_vocabulary()->num_words());
  for (int walk = 0; walk < 2; ++walk) {
    Matcher matcher(made.value());
    for (int step = 0; step < 24 && !matcher.must_end(); ++step) {
      matcher.write_mask(bits);
      std::vector<int32_t> ids;
      for (int32_t id = 0; id < fuzz_vocabulary()->size(); ++id)
        if (bits[id / 32] >> (id % 32) & 1) ids.push_back(id);
      SPARROW_CHECK(!ids.empty());
      random = random * 6364136223846793005u + 1442695040888963407u;
      const int32_t id = ids[(random >> 33) % ids.size()];
      const std::string forced = matcher.forced(16);
      const std::string_view bytes = fuzz_vocabulary()->bytes_of(id);
      SPARROW_CHECK(bytes.starts_with(forced.substr(0, bytes.size())));
      SPARROW_CHECK(matcher.advance(id));
    }
  }
}

}  // namespace sparrow
