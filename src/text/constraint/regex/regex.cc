// SPDX-License-Identifier: Apache-2.0
#include "text/constraint/regex/regex.h"

#include <algorithm>

#include "base/strf.h"
#include "text/constraint/regex/regex_syntax.h"

namespace sparrow {
namespace {

using Kind = RegexNode::Kind;
using Row = std::vector<const RegexNode*>;  // nodes in sequence

// Anchors in groups make an alternative for each way through them; more than these are refused.
constexpr size_t kMaxAnchoredWays = 256;

class Lowering {
 public:
  Lowering(Grammar& grammar, Spelling spelling) : grammar_(grammar), spelling_(spelling) {}

  // `before` and `after` say whether other text may be there, unless there is an anchor.
  Result<NodeId> whole(const RegexNode& root, bool before, bool after) {
    SPARROW_TRY(spread({&root}, 0));
    const NodeId any = grammar_.repeat(one_of(grammar_, CodePoints::all(), spelling_), 0);
    std::vector<NodeId> ways;
    for (Row& row : rows_) {
      Row ahead;
      bool from_start = !before;
      for (; !row.empty() && begins(*row.front()); row.erase(row.begin())) {
        if (row.front()->kind == Kind::kStart)
          from_start = true;
        else
          ahead.push_back(row.front());
      }
      const bool to_end = !after || (!row.empty() && row.back()->kind == Kind::kEnd);
      while (!row.empty() && row.back()->kind == Kind::kEnd) row.pop_back();
      if (!ahead.empty() && !from_start) return unsupported(*ahead[0]);
      std::vector<NodeId> parts{from_start ? grammar_.empty() : any};
      for (const RegexNode* node : row) {
        if (node->anchored) return unsupported(*node);
        parts.push_back(lower(*node));
      }
      parts.push_back(to_end ? grammar_.empty() : any);
      ways.push_back(SPARROW_TRY(with_ahead(grammar_.sequence(parts), ahead)));
    }
    return grammar_.choice(ways);
  }

 private:
  static bool begins(const RegexNode& node) {
    return node.kind == Kind::kStart || node.kind == Kind::kAhead || node.kind == Kind::kNotAhead;
  }

  static Error unsupported(const RegexNode& node) {
    const bool anchor = node.kind != Kind::kAhead && node.kind != Kind::kNotAhead;
    return {Errc::kInvalidArgument,
            strf("{} is not supported, at byte {} of the pattern",
                 anchor ? "an anchor in the middle" : "a look-ahead but where the text begins", node.place)};
  }

  // The whole text is ahead: what has to begin it, and what must not.
  Result<NodeId> with_ahead(NodeId text, const Row& ahead) {
    if (ahead.empty()) return text;
    std::vector<NodeId> wanted{text}, unwanted;
    for (const RegexNode* node : ahead)
      (node->kind == Kind::kAhead ? wanted : unwanted)
          .push_back(SPARROW_TRY(Lowering(grammar_, spelling_).whole(node->parts[0], false, true)));
    return grammar_.both(std::move(wanted), std::move(unwanted));
  }

  // Opens groups that hold anchors until these stand in the row itself.
  Status spread(Row row, int depth) {
    if (rows_.size() > kMaxAnchoredWays || depth > 10'000)
      return Error{Errc::kInvalidArgument, "the pattern has too many alternatives with anchors"};
    for (size_t i = 0; i < row.size(); ++i) {
      const RegexNode& node = *row[i];
      if (!node.anchored || node.kind == Kind::kEnd || begins(node)) continue;
      const auto with = [&](const Row& inside) {
        Row made(row.begin(), row.begin() + static_cast<ptrdiff_t>(i));
        made.insert(made.end(), inside.begin(), inside.end());
        made.insert(made.end(), row.begin() + static_cast<ptrdiff_t>(i) + 1, row.end());
        return made;
      };
      if (node.kind == Kind::kChoice) {
        for (const RegexNode& part : node.parts) SPARROW_TRY(spread(with({&part}), depth + 1));
        return Ok{};
      }
      Row inside;
      for (const RegexNode& part : node.parts) inside.push_back(&part);
      return spread(with(inside), depth + 1);
    }
    rows_.push_back(std::move(row));
    return Ok{};
  }

  NodeId lower(const RegexNode& node) {
    std::vector<NodeId> parts;
    if (node.kind == Kind::kSet) return one_of(grammar_, node.set, spelling_);
    for (const RegexNode& part : node.parts) {
      parts.push_back(lower(part));
      if (grammar_.overflows()) break;
    }
    if (node.kind == Kind::kRepeat) return grammar_.repeat(parts[0], node.min, node.max);
    return node.kind == Kind::kChoice ? grammar_.choice(parts) : grammar_.sequence(parts);
  }

  Grammar& grammar_;
  const Spelling spelling_;
  std::vector<Row> rows_;
};

}  // namespace

Result<NodeId> add_regex(Grammar& grammar, std::string_view pattern, const RegexOptions& options) {
  const RegexNode root = SPARROW_TRY(parse_regex(pattern));
  return Lowering(grammar, options.spelling).whole(root, options.search, options.search);
}

}  // namespace sparrow
