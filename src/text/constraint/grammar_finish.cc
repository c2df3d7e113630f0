// SPDX-License-Identifier: Apache-2.0
// What a grammar must be before an automaton can follow it: repeats consume, and no rule begins with itself.
#include <algorithm>

#include "base/strf.h"
#include "base/utf8.h"
#include "text/constraint/grammar.h"

namespace sparrow {

bool Grammar::is_nullable(NodeId id) const {
  const Node& node = nodes_[id];
  const auto known = [&](NodeId part) { return bool{nullable_[part]}; };
  switch (node.kind) {
    case NodeKind::kEmpty:
      return true;
    case NodeKind::kSequence:
      return std::ranges::all_of(parts(node), known);
    case NodeKind::kChoice:
      return std::ranges::any_of(parts(node), known);
    case NodeKind::kRepeat:
      return node.min == 0 || nullable_[parts(node)[0]];
    case NodeKind::kRule:
      return nullable_[body(node)];
    case NodeKind::kBoth:  // parts that exclude never make it nullable: then it is taken for what it could be
      return std::ranges::all_of(parts(node).first(node.min), known);
    default:
      return false;
  }
}

void Grammar::find_nullable() {
  nullable_.assign(nodes_.size(), false);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < nodes_.size(); ++i)
      if (!nullable_[i] && is_nullable(static_cast<NodeId>(i))) nullable_[i] = changed = true;
  }
}

NodeId Grammar::nonempty_rule(int number) {
  if (rules_[number].nonempty < 0) {
    const int made = add_rule(rules_[number].name);
    rules_[number].nonempty = made;
    const NodeId node = nonempty(rules_[number].node);
    define(made, node);
  }
  return rule(rules_[number].nonempty);
}

// The texts of a node but the empty one.
NodeId Grammar::nonempty(NodeId id) {
  const Node node = nodes_[id];
  if (static_cast<size_t>(id) >= nullable_.size() || !nullable_[id] || overflows()) return id;
  const std::vector<NodeId> old(parts(node).begin(), parts(node).end());
  std::vector<NodeId> made;
  switch (node.kind) {
    case NodeKind::kSequence:
      // All parts may be empty: the first one that is not comes after some that are.
      for (size_t i = 0; i < old.size(); ++i) {
        std::vector<NodeId> rest(old.begin() + static_cast<ptrdiff_t>(i), old.end());
        rest[0] = nonempty(rest[0]);
        made.push_back(sequence(rest));
      }
      return choice(made);
    case NodeKind::kChoice:
      for (const NodeId part : old) made.push_back(nonempty(part));
      return choice(made);
    case NodeKind::kRepeat:
      return repeat(nonempty(old[0]), nullable_[old[0]] ? 1 : std::max(node.min, 1), node.max);
    case NodeKind::kRule:
      return nonempty_rule(node.first);
    case NodeKind::kBoth:
      made.assign(old.begin() + node.min, old.end());
      made.push_back(empty());
      return both({old.begin(), old.begin() + node.min}, std::move(made));
    default:
      return nothing();
  }
}

// A rule that begins with itself would have to be entered for ever.
Status Grammar::visit_left(int number, std::vector<uint8_t>& state) const {
  constexpr uint8_t kOpen = 1, kDone = 2;
  if (state[number] == kDone) return Ok{};
  if (state[number] == kOpen)
    return Error{Errc::kInvalidArgument,
                 strf("the rule {} begins with itself: left recursion is not supported",
                      excerpt(rules_[number].name))};
  state[number] = kOpen;
  std::vector<NodeId> open{rules_[number].node};
  std::vector<bool> seen(nodes_.size());
  while (!open.empty()) {
    const NodeId id = open.back();
    open.pop_back();
    if (seen[id]) continue;
    seen[id] = true;
    const Node& node = nodes_[id];
    if (node.kind == NodeKind::kRule) SPARROW_TRY(visit_left(node.first, state));
    if (node.kind == NodeKind::kChoice || node.kind == NodeKind::kRepeat || node.kind == NodeKind::kBoth)
      open.insert(open.end(), parts(node).begin(), parts(node).end());
    if (node.kind != NodeKind::kSequence) continue;
    for (const NodeId part : parts(node)) {
      open.push_back(part);
      if (!nullable_[part]) break;
    }
  }
  state[number] = kDone;
  return Ok{};
}

Status Grammar::check_left_recursion() const {
  std::vector<uint8_t> state(rules_.size());
  for (size_t i = 0; i < rules_.size(); ++i) SPARROW_TRY(visit_left(static_cast<int>(i), state));
  return Ok{};
}

Status Grammar::finish(NodeId root) {
  const auto too_large = [&] {
    return Error{Errc::kInvalidArgument,
                 strf("the constraint is too large: it has {} parts, or is nested too deep", nodes_.size())};
  };
  if (overflows() || rules_.size() > kMaxGrammarDepth) return too_large();
  find_nullable();
  const size_t size = nodes_.size();
  for (size_t i = 0; i < size; ++i) {
    if (nodes_[i].kind != NodeKind::kRepeat || !nullable_[parts_[nodes_[i].first]]) continue;
    const NodeId part = nonempty(parts_[nodes_[i].first]);
    // As parts are shared by nobody else, the node may change in its place.
    parts_[nodes_[i].first] = part;
    nodes_[i].min = 0;
  }
  if (overflows()) return too_large();
  find_nullable();
  root_ = root;
  known_.clear();
  return check_left_recursion();
}

}  // namespace sparrow
