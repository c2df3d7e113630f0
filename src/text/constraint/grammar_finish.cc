// SPDX-License-Identifier: Apache-2.0
// What a grammar must be before an automaton can follow it: repeats consume, and no rule begins with itself.
#include <algorithm>
#include <unordered_set>

#include "base/strf.h"
#include "base/utf8.h"
#include "text/constraint/grammar.h"

namespace sparrow {

// The nodes of which so many parts hold as they need, each time a part is one counted; found in time that
// does not hang on the order of the rules, which clients write.
std::vector<bool> Grammar::settle(std::vector<int32_t> needs) const {
  std::vector<int32_t> first(nodes_.size() + 1), users;
  const auto each_part = [&](const auto& visit) {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const Node& node = nodes_[i];
      if (node.kind == NodeKind::kRule) visit(body(node), static_cast<NodeId>(i));
      if (node.kind < NodeKind::kSequence || node.kind == NodeKind::kRule) continue;
      // What a kBoth excludes never makes it hold.
      for (const NodeId part : node.kind == NodeKind::kBoth ? parts(node).first(node.min) : parts(node))
        visit(part, static_cast<NodeId>(i));
    }
  };
  each_part([&](NodeId part, NodeId) { ++first[part + 1]; });
  for (size_t i = 0; i < nodes_.size(); ++i) first[i + 1] += first[i];
  users.resize(first.back());
  std::vector<int32_t> next(first.begin(), first.end() - 1);
  each_part([&](NodeId part, NodeId user) { users[next[part]++] = user; });
  std::vector<bool> holds(nodes_.size());
  std::vector<NodeId> open;
  for (size_t i = 0; i < nodes_.size(); ++i)
    if (needs[i] == 0) open.push_back(static_cast<NodeId>(i));
  while (!open.empty()) {
    const NodeId id = open.back();
    open.pop_back();
    holds[id] = true;
    for (int32_t i = first[id]; i < first[id + 1]; ++i)
      if (--needs[users[i]] == 0) open.push_back(users[i]);
  }
  return holds;
}

// How many parts a node needs of which something holds, if it is enough for a choice that one does.
int32_t Grammar::parts_needed(const Node& node) {
  if (node.kind == NodeKind::kSequence) return node.count;
  if (node.kind == NodeKind::kBoth) return node.min;
  return node.kind == NodeKind::kRepeat && node.min == 0 ? 0 : 1;
}

void Grammar::find_nullable() {
  std::vector<int32_t> needs;
  for (const Node& node : nodes_)
    needs.push_back(node.kind == NodeKind::kEmpty     ? 0
                    : node.kind < NodeKind::kSequence ? INT32_MAX
                                                      : parts_needed(node));
  nullable_ = settle(std::move(needs));
}

std::vector<bool> Grammar::productive(const std::vector<bool>& fits) const {
  std::vector<int32_t> needs;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const NodeKind kind = nodes_[i].kind;
    const bool never = kind == NodeKind::kNothing || (kind == NodeKind::kBoth && !fits[i]);
    const bool always = kind < NodeKind::kSequence || kind == NodeKind::kBoth;
    needs.push_back(never ? INT32_MAX : always ? 0 : parts_needed(nodes_[i]));
  }
  return settle(std::move(needs));
}

// It is defined later: rules may follow each other further than a stack goes.
NodeId Grammar::nonempty_rule(int number) {
  if (rules_[number].nonempty < 0) {
    const int made = add_rule(rules_[number].name);
    rules_[number].nonempty = made;
    undefined_.push_back(number);
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
      for (size_t i = 0; i < old.size() && !overflows(); ++i) {
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

// The rules that a rule may begin with.
std::vector<int> Grammar::first_rules(int number) const {
  std::vector<int> rules;
  std::vector<NodeId> open{rules_[number].node};
  std::unordered_set<NodeId> seen;
  while (!open.empty()) {
    const NodeId id = open.back();
    open.pop_back();
    if (!seen.insert(id).second) continue;
    const Node& node = nodes_[id];
    if (node.kind == NodeKind::kRule) rules.push_back(node.first);
    if (node.kind == NodeKind::kChoice || node.kind == NodeKind::kRepeat || node.kind == NodeKind::kBoth)
      open.insert(open.end(), parts(node).begin(), parts(node).end());
    if (node.kind != NodeKind::kSequence) continue;
    for (const NodeId part : parts(node)) {
      open.push_back(part);
      if (!nullable_[part]) break;
    }
  }
  return rules;
}

// A rule that begins with itself would have to be entered for ever.
Status Grammar::check_left_recursion() const {
  enum : uint8_t { kNew, kOpen, kDone };
  struct Visit {
    int rule;
    std::vector<int> next;
  };
  std::vector<uint8_t> state(rules_.size());
  for (size_t i = 0; i < rules_.size(); ++i) {
    std::vector<Visit> path;
    const auto enter = [&](int rule) {
      state[rule] = kOpen;
      path.push_back({rule, first_rules(rule)});
    };
    if (state[i] == kNew) enter(static_cast<int>(i));
    while (!path.empty()) {
      Visit& visit = path.back();
      if (visit.next.empty()) {
        state[visit.rule] = kDone;
        path.pop_back();
        continue;
      }
      const int rule = visit.next.back();
      visit.next.pop_back();
      if (state[rule] == kOpen)
        return Error{Errc::kInvalidArgument,
                     strf("the rule {} begins with itself: left recursion is not supported",
                          excerpt(rules_[rule].name))};
      if (state[rule] == kNew) enter(rule);
    }
  }
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
  while (!undefined_.empty() && !overflows()) {
    const int number = undefined_.back();
    undefined_.pop_back();
    const NodeId node = nonempty(rules_[number].node);
    define(rules_[number].nonempty, node);
  }
  if (overflows()) return too_large();
  find_nullable();
  root_ = root;
  known_.clear();
  return check_left_recursion();
}

}  // namespace sparrow
