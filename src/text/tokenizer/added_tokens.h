// SPDX-License-Identifier: Apache-2.0
// Tokens that are cut out of the text before anything else happens to it, leftmost first, the longest of
// those.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/prompt_text.h"

namespace sparrow {

struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool special = false;      // control token: not part of the answer's text
  bool normalized = false;   // looked for after normalisation instead of before
  bool single_word = false;  // only where no letter or digit touches it
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space after it

  // Whether it steers the model, so that only markup may spell it. The others are ordinary words.
  bool is_control() const;
};

// Which added tokens are found in a text.
enum class Recognise {
  kAll,         // as a prompt wants it
  kNotSpecial,  // special ones are plain text
  kNone,        // all of them are plain text
};

// The same, or: control tokens only where every byte of them is markup.
struct Recognition {
  Recognition(Recognise which = Recognise::kAll) : which(which) {}    // NOLINT: a short form
  Recognition(std::span<const TextRange> markup) : markup(markup) {}  // NOLINT: a short form

  Recognise which = Recognise::kAll;
  std::optional<std::span<const TextRange>> markup = {};
};

class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  // Empty contents are never found. The tokens must outlive the finder.
  explicit AddedTokenFinder(std::span<const AddedToken* const> tokens);

  bool empty() const { return tokens_.empty(); }
  size_t max_bytes() const { return max_bytes_; }

  struct Match {
    const AddedToken* token;
    size_t start, end;
  };
  // Every token of text[from..], in order and without overlap. Text before `from` is done: it only matters as
  // what stands before a token.
  std::vector<Match> find_all(std::string_view text, size_t from, const Recognition& recognition) const;

 private:
  class Permits;
  bool next(std::string_view text, size_t from, Permits& permits, Match& match) const;

  std::vector<const AddedToken*> tokens_;
  std::array<uint8_t, 256> symbol_{};  // of each byte; 0: in no token
  size_t num_symbols_ = 1;
  // Trie over symbols, [node][symbol]; 0 leads nowhere. starts_ are the bytes that leave the root.
  std::vector<uint32_t> children_;
  std::vector<int32_t> token_at_;  // index into tokens_ of the token that ends at a node, or -1
  std::array<bool, 256> starts_{};
  size_t max_bytes_ = 0;
};

}  // namespace sparrow
