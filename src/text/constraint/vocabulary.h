// SPDX-License-Identifier: Apache-2.0
// Vocabulary: the tokens of a model as trees of bytes, so that an automaton is led through all of them
// without reading a common beginning twice. Immutable; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/constraint/byte_set.h"
#include "text/tokenizer/tokenizer.h"

namespace sparrow {

// Tokens of markup that a text must not spell have bytes that no text has.
inline constexpr char kMarkerByte = '\xFF', kCallsOpenByte = '\xFE', kCallsCloseByte = '\xFD';
// In a grammar, behind the marker and "</": the name of the element that is open, and ">".
inline constexpr char kSameNameByte = '\xFC';
struct MarkupToken {
  std::string_view token;
  char byte;
};

class Vocabulary {
 public:
  // In the order of a walk: a node, then what is below it.
  struct TreeNode {
    int32_t id;      // of the token that ends here; -1: none
    int32_t next;    // the node after all that are below
    int32_t branch;  // of Tree::branches; -1: little is below
    uint16_t depth;
    uint8_t byte;
  };
  // All that is below a node, so that a state in which all of it may come need not look at each token.
  struct Branch {
    ByteSet bytes;         // that its tokens have from there on
    int32_t first, count;  // of Tree::ids, the node's own among them
    int32_t height;        // bytes of the longest
  };
  struct Tree {
    std::vector<TreeNode> nodes;
    std::vector<Branch> branches;
    std::vector<int32_t> ids;  // in the order of the nodes
    ByteSet bytes;             // of all its tokens
    // [n]: its tokens of at most n bytes, as bits, up to the longest, and their twins. Empty where the tokens
    // have too many bytes for a state to take them all.
    std::vector<std::vector<uint32_t>> up_to;
  };

  // Tokens by id; an empty one cannot be written.
  explicit Vocabulary(std::span<const std::string> tokens);
  // What a model with so many ids may write in an answer: no control tokens, no ids without a token, and of
  // the added ones only those of `markup`.
  Vocabulary(const Tokenizer& tokenizer, int vocab_size, std::span<const MarkupToken> markup = {});

  int size() const { return static_cast<int>(tokens_.size()); }
  size_t num_words() const { return (tokens_.size() + 31) / 32; }
  std::string_view bytes_of(int32_t id) const { return tokens_[id]; }
  size_t max_depth() const { return max_depth_; }

  // Tokens that are made of whole characters, none of which is a quote, a backslash or a control
  // character, in a tree for each kind (small letters, letters and digits, all else; the same behind a
  // blank); and the others.
  std::span<const Tree> plain() const { return plain_; }
  const Tree& rest() const { return rest_; }
  // The plain ones of at most so many characters, as bits.
  std::span<const uint32_t> plain_up_to(int num_chars) const;
  // Sets the bits of the tokens that the text begins with.
  void add_beginnings(std::string_view text, std::span<uint32_t> bits) const;
  // Tokens with the same bytes as another; that one stands in the trees for them.
  std::span<const std::pair<int32_t, int32_t>> twins() const { return twins_; }

 private:
  void build();
  Tree tree(std::span<const int32_t> sorted) const;
  static void add_branches(Tree& tree);
  void add_bits(Tree& tree) const;

  std::vector<std::string> tokens_;
  std::vector<Tree> plain_;
  Tree rest_;
  std::vector<std::vector<uint32_t>> plain_up_to_;
  std::vector<std::pair<int32_t, int32_t>> twins_;  // the one in the trees, the other; sorted
  size_t max_depth_ = 0;
};

}  // namespace sparrow
