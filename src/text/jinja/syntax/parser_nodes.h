// SPDX-License-Identifier: Apache-2.0
// What the parts of the parser share: making nodes, and the guard against nesting deeper than the stack.
#pragma once

#include "base/strf.h"
#include "text/jinja/syntax/parser.h"

namespace sparrow::jinja {

// Levels of blocks, parentheses and operands while parsing; also of the tree that comes out.
inline constexpr int kMaxNesting = 200;

struct Parser::Nesting {
  explicit Nesting(int& depth) : depth_(depth) { ++depth_; }
  ~Nesting() { --depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

  Status check(int line) const {
    if (depth_ <= kMaxNesting) return Ok{};
    return syntax_error(line, strf("nested more than {} deep", kMaxNesting));
  }

 private:
  int& depth_;
};

inline ExprPtr make_expr(ExprKind kind, int line) {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  return expr;
}

template <typename... Kids>
ExprPtr make_expr(ExprKind kind, int line, Kids... kids) {
  ExprPtr expr = make_expr(kind, line);
  (expr->kids.push_back(std::move(kids)), ...);
  return expr;
}

}  // namespace sparrow::jinja
