// SPDX-License-Identifier: Apache-2.0
// Grammar: a language over bytes, as a graph of nodes. Equal nodes are one node. Everything that constrains
// an output (JSON schemas, regular expressions, grammars, choices) is written down in this form.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "text/constraint/byte_set.h"

namespace sparrow {

using NodeId = int32_t;

enum class NodeKind : uint8_t {
  kNothing,   // no text at all
  kEmpty,     // the empty text
  kLiteral,   // these bytes
  kClass,     // one byte of a set
  kSequence,  // its parts, in order
  kChoice,    // one of its parts
  kRepeat,    // its part, min to max times
  kRule,      // what the rule stands for
  kBoth,      // a text that all of the first `min` parts have, and none of the others
};

struct Node {
  NodeKind kind = NodeKind::kNothing;
  int32_t first = 0;  // of the bytes, classes or parts; a rule's number
  int32_t count = 0;
  int32_t min = 0, max = 0;
  int32_t depth = 1;
};

// What a grammar that a client sent may cost.
inline constexpr size_t kMaxGrammarNodes = 200'000, kMaxGrammarParts = 2'000'000;
inline constexpr int kMaxGrammarDepth = 5'000;

class Grammar {
 public:
  static constexpr int kNoLimit = INT32_MAX;

  Grammar();

  NodeId nothing() const { return 0; }
  NodeId empty() const { return 1; }
  NodeId literal(std::string_view bytes);
  NodeId bytes(const ByteSet& set);
  NodeId sequence(const std::vector<NodeId>& parts);
  NodeId choice(const std::vector<NodeId>& parts);
  NodeId repeat(NodeId part, int min, int max = kNoLimit);
  NodeId optional(NodeId part) { return choice({part, empty()}); }
  NodeId both(std::vector<NodeId> parts, std::vector<NodeId> none_of = {});
  // One of the texts, their common beginnings once.
  NodeId words(std::vector<std::string> texts);
  // What `make` makes, which is asked once for each key: large nodes that come up again and again.
  NodeId once(const std::string& key, const std::function<NodeId()>& make);

  // A rule may be used before it is defined, also by itself.
  int add_rule(std::string name);
  NodeId rule(int number);
  void define(int rule, NodeId node) { rules_[rule].node = node; }

  // `part` takes every character that JSON strings hold unescaped, `ascii` those of one byte: outputs are
  // full of them.
  void set_plain(NodeId ascii, NodeId part) { plain_ascii_ = ascii, plain_part_ = part; }
  NodeId plain_ascii() const { return plain_ascii_; }
  NodeId plain_part() const { return plain_part_; }

  // Nothing is added any more. Error: too large or too deep, or a rule that begins with itself.
  Status finish(NodeId root);

  // Of the finished grammar.
  NodeId root() const { return root_; }
  size_t size() const { return nodes_.size(); }
  const Node& node(NodeId id) const { return nodes_[id]; }
  std::span<const NodeId> parts(const Node& node) const {
    return std::span(parts_).subspan(node.first, node.count);
  }
  std::string_view text(const Node& node) const {
    return std::string_view(bytes_).substr(node.first, node.count);
  }
  const ByteSet& set(const Node& node) const { return sets_[node.first]; }
  NodeId body(const Node& rule) const { return rules_[rule.first].node; }
  // More was asked for than a grammar may have; finish() will say so. Whoever adds much stops then.
  bool overflows() const {
    return nodes_.size() > kMaxGrammarNodes || parts_.size() > kMaxGrammarParts || too_deep_;
  }
  // For each node whether some text fits; `fits` says it of kBoth.
  std::vector<bool> productive(const std::vector<bool>& fits) const;

 private:
  struct Rule {
    std::string name;
    NodeId node = 0;
    int nonempty = -1;  // the rule for what is not empty of it
  };

  NodeId add(Node node, std::string_view key);
  NodeId add_parts(NodeKind kind, const std::vector<NodeId>& parts, int min, int max);
  NodeId word_range(std::span<const std::string> texts, size_t from);
  void find_nullable();
  std::vector<bool> settle(std::vector<int32_t> needs) const;
  static int32_t parts_needed(const Node& node);
  NodeId nonempty(NodeId id);
  NodeId nonempty_rule(int number);
  Status check_left_recursion() const;
  std::vector<int> first_rules(int number) const;

  std::vector<Node> nodes_;
  std::vector<NodeId> parts_;
  std::vector<ByteSet> sets_;
  std::string bytes_;
  std::vector<Rule> rules_;
  std::vector<int> undefined_;  // rules whose nonempty one has no body yet
  std::unordered_map<std::string, NodeId> known_, made_;
  std::vector<bool> nullable_;
  NodeId root_ = 0, plain_ascii_ = -1, plain_part_ = -1;
  bool too_deep_ = false;
};

}  // namespace sparrow
