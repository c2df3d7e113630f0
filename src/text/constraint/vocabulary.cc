// SPDX-License-Identifier: Apache-2.0
#include "text/constraint/vocabulary.h"

#include <algorithm>
#include <numeric>

#include "base/utf8.h"

namespace sparrow {
namespace {

// Tokens that are longer than this are walked to.
constexpr int kMaxPlainChars = 48;

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

}  // namespace

Vocabulary::Vocabulary(std::span<const std::string> tokens) : tokens_(tokens.begin(), tokens.end()) {
  build();
}

Vocabulary::Vocabulary(const Tokenizer& tokenizer, int vocab_size, std::span<const std::string_view> markup) {
  tokens_.resize(vocab_size);
  for (int32_t id = 0; id < std::min(vocab_size, tokenizer.vocab_size()); ++id)
    if (!tokenizer.is_special(id)) tokens_[id] = tokenizer.bytes_of(id).value();
  for (const AddedToken& added : tokenizer.added_tokens())
    if (added.id < vocab_size && std::ranges::find(markup, added.content) == markup.end())
      tokens_[added.id].clear();
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
  std::vector<int32_t> plain, rest;
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
      (chars[id] > 0 ? plain : rest).push_back(id);
    }
  }
  std::sort(twins_.begin(), twins_.end());
  plain_ = tree(plain);
  rest_ = tree(rest);
  const int longest = chars.empty() ? 0 : *std::max_element(chars.begin(), chars.end());
  plain_up_to_.assign(static_cast<size_t>(longest) + 1, std::vector<uint32_t>(num_words()));
  for (size_t id = 0; id < tokens_.size(); ++id)
    for (int count = std::max(chars[id], 1); chars[id] > 0 && count <= longest; ++count)
      plain_up_to_[count][id / 32] |= uint32_t{1} << (id % 32);
}

std::vector<Vocabulary::TreeNode> Vocabulary::tree(std::span<const int32_t> sorted) const {
  std::vector<TreeNode> nodes;
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
                       .depth = static_cast<uint16_t>(depth),
                       .byte = static_cast<uint8_t>(token[depth])});
    }
    before = token;
  }
  close(0);
  return nodes;
}

std::span<const uint32_t> Vocabulary::plain_up_to(int num_chars) const {
  return plain_up_to_[std::min<size_t>(static_cast<size_t>(num_chars), plain_up_to_.size() - 1)];
}

}  // namespace sparrow
