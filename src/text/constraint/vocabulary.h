// SPDX-License-Identifier: Apache-2.0
// Vocabulary: the tokens of a model as trees of bytes, so that an automaton is led through all of them
// without reading a common beginning twice. Immutable; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace sparrow {

class Vocabulary {
 public:
  // In the order of a walk: a node, then what is below it.
  struct TreeNode {
    int32_t id;    // of the token that ends here; -1: none
    int32_t next;  // the node after all that are below
    uint16_t depth;
    uint8_t byte;
  };

  // Tokens by id; an empty one cannot be written.
  explicit Vocabulary(std::span<const std::string> tokens);
  // What a model with so many ids may write in an answer: no control tokens, no ids without a token. Added
  // tokens only where `markup` lists them.
  Vocabulary(const Tokenizer& tokenizer, int vocab_size, std::span<const std::string_view> markup = {});

  int size() const { return static_cast<int>(tokens_.size()); }
  size_t num_words() const { return (tokens_.size() + 31) / 32; }
  std::string_view bytes_of(int32_t id) const { return tokens_[id]; }
  size_t max_depth() const { return max_depth_; }

  // Tokens that are made of whole characters, none of which is a quote, a backslash or a control character;
  // and the others.
  std::span<const TreeNode> plain() const { return plain_; }
  std::span<const TreeNode> rest() const { return rest_; }
  // The plain ones of at most so many characters, as bits.
  std::span<const uint32_t> plain_up_to(int num_chars) const;
  // Tokens with the same bytes as another; that one stands in the trees for them.
  std::span<const std::pair<int32_t, int32_t>> twins() const { return twins_; }

 private:
  void build();
  std::vector<TreeNode> tree(std::span<const int32_t> sorted) const;

  std::vector<std::string> tokens_;
  std::vector<TreeNode> plain_, rest_;
  std::vector<std::vector<uint32_t>> plain_up_to_;
  std::vector<std::pair<int32_t, int32_t>> twins_;  // the one in the trees, the other; sorted
  size_t max_depth_ = 0;
};

}  // namespace sparrow
