// SPDX-License-Identifier: Apache-2.0
#include "text/constraint/vocabulary.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/utf8.h"

namespace sparrow {
namespace {

// Tokens that are longer than this are walked to.
constexpr int kMaxPlainChars = 48;

// What is below a node is worth to be known as a whole from this many tokens on.
constexpr int kMinBranch = 6;

// The characters of a plain token; 0: it is none.
int plain_chars(std::string_view token) {
  int count = 0;
  while (!token.empty()) {
    const Utf8Char c = decode_utf8(token);
    if (!c.valid || c.code_point < 0x20 || c.code_point == '"' || c.code_point == '\\') return 0;
    token.remove_prefix(c.length);
    ++count;
  }
  return count <= kMaxPlainChars ? count : 0;
}

// Vocabularies have every byte as a token, those among them that only markup has.
bool has_markup_byte(std::string_view token) {
  constexpr char kBytes[] = {kMarkerByte, kCallsOpenByte, kCallsCloseByte, kSameNameByte};
  return token.find_first_of(std::string_view(kBytes, sizeof kBytes)) != std::string_view::npos;
}

constexpr int kNumKinds = 6, kNarrowKinds[] = {0, 1, 3, 4};

// Tokens of one kind are taken together where a state takes all their bytes.
int kind_of(std::string_view token) {
  const bool blank = token.size() > 1 && token[0] == ' ';
  if (blank) token.remove_prefix(1);
  const auto lower = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto alnum = [&](char c) { return lower(c) || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); };
  const int kind = std::ranges::all_of(token, lower) ? 0 : std::ranges::all_of(token, alnum) ? 1 : 2;
  return blank ? kind + 3 : kind;
}

}  // namespace

Vocabulary::Vocabulary(std::span<const std::string> tokens) : tokens_(tokens.begin(), tokens.end()) {
  build();
}

Vocabulary::Vocabulary(const Tokenizer& tokenizer, int vocab_size, std::span<const MarkupToken> markup) {
  tokens_.resize(vocab_size);
  for (int32_t id = 0; id < std::min(vocab_size, tokenizer.vocab_size()); ++id)
    if (!tokenizer.is_special(id) && !has_markup_byte(tokenizer.bytes_of(id).value()))
      tokens_[id] = tokenizer.bytes_of(id).value();
  for (const AddedToken& added : tokenizer.added_tokens()) {
    if (added.id >= vocab_size) continue;
    tokens_[added.id].clear();
    for (const MarkupToken& one : markup)
      if (one.token == added.content) tokens_[added.id] = one.byte;
  }
  build();
}

void Vocabulary::build() {
  std::vector<int32_t> order(tokens_.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](int32_t id) { return tokens_[id].empty(); });
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const int compared = tokens_[a].compare(tokens_[b]);
    return compared != 0 ? compared < 0 : a < b;
  });
  std::vector<int32_t> plain[kNumKinds], rest;
  std::vector<int> chars(tokens_.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t id = order[i];
    max_depth_ = std::max(max_depth_, tokens_[id].size());
    chars[id] = plain_chars(tokens_[id]);
    if (i > 0 && tokens_[order[i - 1]] == tokens_[id]) {
      const int32_t before = order[i - 1];
      twins_.emplace_back(!twins_.empty() && twins_.back().second == before ? twins_.back().first : before,
                          id);
    } else {
      (chars[id] > 0 ? plain[kind_of(tokens_[id])] : rest).push_back(id);
    }
  }
  std::sort(twins_.begin(), twins_.end());
  for (const std::vector<int32_t>& kind : plain) plain_.push_back(tree(kind));
  for (const int kind : kNarrowKinds) add_bits(plain_[kind]);
  rest_ = tree(rest);
  const int longest = chars.empty() ? 0 : *std::max_element(chars.begin(), chars.end());
  plain_up_to_.assign(static_cast<size_t>(longest) + 1, std::vector<uint32_t>(num_words()));
  for (size_t id = 0; id < tokens_.size(); ++id)
    for (int count = std::max(chars[id], 1); chars[id] > 0 && count <= longest; ++count)
      plain_up_to_[count][id / 32] |= uint32_t{1} << (id % 32);
}

Vocabulary::Tree Vocabulary::tree(std::span<const int32_t> sorted) const {
  Tree made;
  std::vector<TreeNode>& nodes = made.nodes;
  std::vector<size_t> path;  // nodes from the top to the token before
  const auto close = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) nodes[path.back()].next = static_cast<int32_t>(nodes.size());
  };
  std::string_view before;
  for (const int32_t id : sorted) {
    const std::string_view token = tokens_[id];
    const auto differ = std::mismatch(before.begin(), before.end(), token.begin(), token.end());
    close(static_cast<size_t>(differ.second - token.begin()));
    for (size_t depth = path.size(); depth < token.size(); ++depth) {
      path.push_back(nodes.size());
      nodes.push_back({.id = depth + 1 == token.size() ? id : -1,
                       .next = 0,
                       .branch = -1,
                       .depth = static_cast<uint16_t>(depth),
                       .byte = static_cast<uint8_t>(token[depth])});
    }
    before = token;
  }
  close(0);
  made.ids.assign(sorted.begin(), sorted.end());
  add_branches(made);
  return made;
}

void Vocabulary::add_branches(Tree& tree) {
  std::vector<TreeNode>& nodes = tree.nodes;
  std::vector<Branch> all(nodes.size());
  auto first = static_cast<int32_t>(tree.ids.size());
  for (auto i = static_cast<int32_t>(nodes.size()); i-- > 0;) {
    Branch& branch = all[i];
    if (nodes[i].id >= 0) --first;
    branch = {.bytes = {}, .first = first, .count = nodes[i].id >= 0, .height = 0};
    for (int32_t child = i + 1; child < nodes[i].next; child = nodes[child].next) {
      branch.bytes.add(nodes[child].byte);
      branch.bytes.add(all[child].bytes);
      branch.count += all[child].count;
      branch.height = std::max(branch.height, all[child].height + 1);
    }
    if (branch.count < kMinBranch) continue;
    nodes[i].branch = static_cast<int32_t>(tree.branches.size());
    tree.branches.push_back(branch);
  }
}

void Vocabulary::add_bits(Tree& tree) const {
  const auto add = [&](int32_t id) { tree.up_to[tokens_[id].size()][id / 32] |= uint32_t{1} << (id % 32); };
  for (const int32_t id : tree.ids) {
    for (const char byte : tokens_[id]) tree.bytes.add(static_cast<uint8_t>(byte));
    if (tree.up_to.size() <= tokens_[id].size())
      tree.up_to.resize(tokens_[id].size() + 1, std::vector<uint32_t>(num_words()));
    add(id);
    auto twin = std::ranges::lower_bound(twins_, id, {}, &std::pair<int32_t, int32_t>::first);
    for (; twin != twins_.end() && twin->first == id; ++twin) add(twin->second);
  }
  for (size_t size = 1; size < tree.up_to.size(); ++size)
    std::ranges::transform(tree.up_to[size], tree.up_to[size - 1], tree.up_to[size].begin(), std::bit_or<>());
}

std::span<const uint32_t> Vocabulary::plain_up_to(int num_chars) const {
  return plain_up_to_[std::min<size_t>(static_cast<size_t>(num_chars), plain_up_to_.size() - 1)];
}

void Vocabulary::add_beginnings(std::string_view text, std::span<uint32_t> bits) const {
  const auto add = [&](int32_t id) { bits[id / 32] |= uint32_t{1} << (id % 32); };
  const auto look_through = [&](const Tree& tree) {
    for (size_t i = 0; i < tree.nodes.size();) {
      const TreeNode& node = tree.nodes[i];
      const bool fits = node.depth < text.size() && static_cast<uint8_t>(text[node.depth]) == node.byte;
      if (fits && node.id >= 0) add(node.id);
      i = fits ? i + 1 : static_cast<size_t>(node.next);
    }
  };
  for (const Tree& tree : plain_) look_through(tree);
  look_through(rest_);
  for (const auto& [first, second] : twins_)
    if (bits[first / 32] >> (first % 32) & 1) add(second);
}

}  // namespace sparrow
