// SPDX-License-Identifier: Apache-2.0
#include "text/constraint/grammar.h"

#include <algorithm>

#include "base/strf.h"

namespace sparrow {
namespace {

std::string key_of(NodeKind kind, std::initializer_list<int64_t> numbers, std::string_view rest = {}) {
  std::string key(1, static_cast<char>(kind));
  for (const int64_t number : numbers) key.append(reinterpret_cast<const char*>(&number), sizeof(number));
  return key.append(rest);
}

std::string_view as_bytes(const std::vector<NodeId>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(NodeId)};
}

}  // namespace

Grammar::Grammar() {
  nodes_.push_back({.kind = NodeKind::kNothing});
  nodes_.push_back({.kind = NodeKind::kEmpty});
}

NodeId Grammar::add(Node node, std::string_view key) {
  const auto [entry, is_new] = known_.try_emplace(std::string(key), static_cast<NodeId>(nodes_.size()));
  if (is_new) nodes_.push_back(node);
  return entry->second;
}

NodeId Grammar::add_parts(NodeKind kind, const std::vector<NodeId>& parts, int min, int max) {
  const std::string key = key_of(kind, {min, max}, as_bytes(parts));
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  Node node{.kind = kind,
            .first = static_cast<int32_t>(parts_.size()),
            .count = static_cast<int32_t>(parts.size()),
            .min = min,
            .max = max};
  for (const NodeId part : parts) node.depth = std::max(node.depth, nodes_[part].depth + 1);
  too_deep_ |= node.depth > kMaxGrammarDepth;
  parts_.insert(parts_.end(), parts.begin(), parts.end());
  return add(node, key);
}

NodeId Grammar::literal(std::string_view bytes) {
  if (bytes.empty()) return empty();
  const std::string key = key_of(NodeKind::kLiteral, {}, bytes);
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  const Node node{.kind = NodeKind::kLiteral,
                  .first = static_cast<int32_t>(bytes_.size()),
                  .count = static_cast<int32_t>(bytes.size())};
  bytes_ += bytes;
  return add(node, key);
}

NodeId Grammar::bytes(const ByteSet& set) {
  if (set.size() == 0) return nothing();
  if (set.size() == 1) return literal(std::string(1, static_cast<char>(set.first())));
  const auto& words = set.words();
  const std::string key =
      key_of(NodeKind::kClass, {static_cast<int64_t>(words[0]), static_cast<int64_t>(words[1]),
                                static_cast<int64_t>(words[2]), static_cast<int64_t>(words[3])});
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  sets_.push_back(set);
  return add({.kind = NodeKind::kClass, .first = static_cast<int32_t>(sets_.size()) - 1, .count = 1}, key);
}

NodeId Grammar::sequence(const std::vector<NodeId>& parts) {
  std::vector<NodeId> flat;
  std::string joined;  // literals that follow each other are one
  const auto flush = [&] {
    if (!joined.empty()) flat.push_back(literal(joined));
    joined.clear();
  };
  for (const NodeId part : parts) {
    const Node& node = nodes_[part];
    if (node.kind == NodeKind::kNothing) return nothing();
    if (node.kind == NodeKind::kEmpty) continue;
    if (node.kind == NodeKind::kLiteral) {
      joined += text(node);
      continue;
    }
    flush();
    flat.push_back(part);
  }
  flush();
  if (flat.empty()) return empty();
  return flat.size() == 1 ? flat[0] : add_parts(NodeKind::kSequence, flat, 0, 0);
}

NodeId Grammar::choice(const std::vector<NodeId>& parts) {
  std::vector<NodeId> flat;
  ByteSet single;
  for (const NodeId part : parts) {
    const Node& node = nodes_[part];
    if (node.kind == NodeKind::kNothing) continue;
    if (node.kind == NodeKind::kChoice) {
      for (const NodeId inner : this->parts(node)) flat.push_back(inner);
    } else {
      flat.push_back(part);
    }
  }
  // Sets of bytes are joined.
  std::erase_if(flat, [&](NodeId part) {
    const Node& node = nodes_[part];
    if (node.kind == NodeKind::kClass) return single.add(set(node)), true;
    if (node.kind != NodeKind::kLiteral || node.count != 1) return false;
    single.add(static_cast<unsigned char>(text(node)[0]));
    return true;
  });
  if (single.size() > 0) flat.push_back(bytes(single));
  std::sort(flat.begin(), flat.end());
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  if (flat.empty()) return nothing();
  return flat.size() == 1 ? flat[0] : add_parts(NodeKind::kChoice, flat, 0, 0);
}

NodeId Grammar::repeat(NodeId part, int min, int max) {
  SPARROW_CHECK(min >= 0 && max >= 0);
  if (min > max) return nothing();
  const NodeKind kind = nodes_[part].kind;
  if (max == 0 || kind == NodeKind::kEmpty) return empty();
  if (kind == NodeKind::kNothing) return min == 0 ? empty() : nothing();
  if (min == 1 && max == 1) return part;
  return add_parts(NodeKind::kRepeat, {part}, min, max);
}

NodeId Grammar::both(std::vector<NodeId> parts, std::vector<NodeId> none_of) {
  SPARROW_CHECK(!parts.empty());
  std::erase_if(none_of, [&](NodeId part) { return part == nothing(); });
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  for (const NodeId part : parts)
    if (part == nothing()) return nothing();
  if (parts.size() == 1 && none_of.empty()) return parts[0];
  const int count = static_cast<int>(parts.size());
  parts.insert(parts.end(), none_of.begin(), none_of.end());
  return add_parts(NodeKind::kBoth, parts, count, 0);
}

NodeId Grammar::words(std::vector<std::string> texts) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return word_range(texts, 0);
}

// Sorted texts that are equal up to `from`.
NodeId Grammar::word_range(std::span<const std::string> texts, size_t from) {
  std::vector<NodeId> parts;
  size_t i = 0;
  if (!texts.empty() && texts[0].size() == from) parts.push_back(empty()), ++i;
  while (i < texts.size()) {
    size_t end = i + 1;
    while (end < texts.size() && texts[end][from] == texts[i][from]) ++end;
    const std::string &first = texts[i], &last = texts[end - 1];
    size_t common = from + 1;
    while (common < first.size() && common < last.size() && first[common] == last[common]) ++common;
    const NodeId start = literal(std::string_view(first).substr(from, common - from));
    parts.push_back(sequence({start, word_range(texts.subspan(i, end - i), common)}));
    i = end;
  }
  return choice(parts);
}

NodeId Grammar::once(const std::string& key, const std::function<NodeId()>& make) {
  if (const auto found = made_.find(key); found != made_.end()) return found->second;
  return made_[key] = make();
}

int Grammar::add_rule(std::string name) {
  rules_.push_back({.name = std::move(name)});
  return static_cast<int>(rules_.size()) - 1;
}

NodeId Grammar::rule(int number) {
  return add({.kind = NodeKind::kRule, .first = number, .count = 1}, key_of(NodeKind::kRule, {number}));
}

}  // namespace sparrow
