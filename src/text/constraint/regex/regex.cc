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
  Lowering(Grammar& grammar, const RegexOptions& options) : grammar_(grammar), options_(options) {}

  Result<NodeId> whole(const RegexNode& root) {
    SPARROW_TRY(spread({&root}, 0));
    const NodeId any = one_of(grammar_, CodePoints::all(), options_.spelling);
    const NodeId around = options_.search ? grammar_.repeat(any, 0) : grammar_.empty();
    std::vector<NodeId> ways;
    for (Row& row : rows_) {
      const bool start = !row.empty() && row.front()->kind == Kind::kStart;
      const bool end = !row.empty() && row.back()->kind == Kind::kEnd;
      while (!row.empty() && row.front()->kind == Kind::kStart) row.erase(row.begin());
      while (!row.empty() && row.back()->kind == Kind::kEnd) row.pop_back();
      std::vector<NodeId> parts{start ? grammar_.empty() : around};
      for (const RegexNode* node : row) {
        if (node->anchored)
          return Error{
              Errc::kInvalidArgument,
              strf("an anchor in the middle is not supported, at byte {} of the pattern", node->place)};
        parts.push_back(lower(*node));
      }
      parts.push_back(end ? grammar_.empty() : around);
      ways.push_back(grammar_.sequence(parts));
    }
    return grammar_.choice(ways);
  }

 private:
  // Opens groups that hold anchors until these stand in the row itself.
  Status spread(Row row, int depth) {
    if (rows_.size() > kMaxAnchoredWays || depth > 10'000)
      return Error{Errc::kInvalidArgument, "the pattern has too many alternatives with anchors"};
    for (size_t i = 0; i < row.size(); ++i) {
      const RegexNode& node = *row[i];
      if (!node.anchored || node.kind == Kind::kStart || node.kind == Kind::kEnd) continue;
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
    if (node.kind == Kind::kSet) return one_of(grammar_, node.set, options_.spelling);
    for (const RegexNode& part : node.parts) {
      parts.push_back(lower(part));
      if (grammar_.overflows()) break;
    }
    if (node.kind == Kind::kRepeat) return grammar_.repeat(parts[0], node.min, node.max);
    return node.kind == Kind::kChoice ? grammar_.choice(parts) : grammar_.sequence(parts);
  }

  Grammar& grammar_;
  const RegexOptions& options_;
  std::vector<Row> rows_;
};

}  // namespace

Result<NodeId> add_regex(Grammar& grammar, std::string_view pattern, const RegexOptions& options) {
  const RegexNode root = SPARROW_TRY(parse_regex(pattern));
  return Lowering(grammar, options).whole(root);
}

}  // namespace sparrow
