// SPDX-License-Identifier: Apache-2.0
// Expressions, in the order of jinja2's precedence: if, or, and, not, comparisons, + -, ~, * / // %, **,
// signs, and the filters and tests behind a value.
#include <algorithm>
#include <array>

#include "base/strf.h"
#include "text/jinja/builtins/builtins.h"
#include "text/jinja/syntax/parser.h"
#include "text/jinja/syntax/parser_nodes.h"

namespace sparrow::jinja {

// Sets the depth of a node whose kids are complete, and refuses a tree too deep to walk.
Result<ExprPtr> Parser::finished(ExprPtr expr) const {
  int depth = 0;
  const auto count = [&depth](const ExprPtr& kid) {
    if (kid != nullptr) depth = std::max(depth, kid->depth);
  };
  for (const ExprPtr& kid : expr->kids) count(kid);
  for (const ExprPtr& kid : expr->args.positional) count(kid);
  for (const auto& [name, kid] : expr->args.named) count(kid);
  count(expr->args.star);
  count(expr->args.double_star);
  expr->depth = depth + 1;
  if (expr->depth > kMaxNesting)
    return syntax_error(expr->line, strf("an expression nests more than {} deep", kMaxNesting));
  return expr;
}

Result<ExprPtr> Parser::expression(Condition condition) {
  Nesting nesting(depth_);
  SPARROW_TRY(nesting.check(now().line));
  return condition == Condition::kAllowed ? conditional() : either();
}

Result<ExprPtr> Parser::conditional() {
  const int line = now().line;
  ExprPtr value = SPARROW_TRY(either());
  while (skip_name("if")) {
    ++branches_;
    ExprPtr test = SPARROW_TRY(either());
    ExprPtr otherwise;
    if (skip_name("else")) {
      Nesting nesting(depth_);
      SPARROW_TRY(nesting.check(now().line));
      otherwise = SPARROW_TRY(conditional());
    }
    --branches_;
    value = SPARROW_TRY(finished(
        make_expr(ExprKind::kConditional, line, std::move(test), std::move(value), std::move(otherwise))));
  }
  return value;
}

Result<ExprPtr> Parser::either() {
  const int line = now().line;
  ExprPtr left = SPARROW_TRY(both());
  while (skip_name("or")) {
    ExprPtr right = SPARROW_TRY(both());
    left = SPARROW_TRY(finished(make_expr(ExprKind::kOr, line, std::move(left), std::move(right))));
  }
  return left;
}

Result<ExprPtr> Parser::both() {
  const int line = now().line;
  ExprPtr left = SPARROW_TRY(negation());
  while (skip_name("and")) {
    ExprPtr right = SPARROW_TRY(negation());
    left = SPARROW_TRY(finished(make_expr(ExprKind::kAnd, line, std::move(left), std::move(right))));
  }
  return left;
}

Result<ExprPtr> Parser::negation() {
  const int line = now().line;
  if (!skip_name("not")) return comparison();
  Nesting nesting(depth_);
  SPARROW_TRY(nesting.check(line));
  return finished(make_expr(ExprKind::kNot, line, SPARROW_TRY(negation())));
}

Result<ExprPtr> Parser::comparison() {
  static constexpr std::array<std::string_view, 6> kOperators{"==", "!=", "<", "<=", ">", ">="};
  const int line = now().line;
  ExprPtr first = SPARROW_TRY(sum());
  ExprPtr all;
  while (true) {
    std::string op;
    if (now().kind == TokenKind::kOperator &&
        std::find(kOperators.begin(), kOperators.end(), now().text) != kOperators.end()) {
      op = take().text;
    } else if (skip_name("in")) {
      op = "in";
    } else if (now().is_name("not") && look().is_name("in")) {
      take();
      take();
      op = "not in";
    } else {
      break;
    }
    if (all == nullptr) all = make_expr(ExprKind::kCompare, line, std::move(first));
    all->ops.push_back(std::move(op));
    all->kids.push_back(SPARROW_TRY(sum()));
  }
  return all == nullptr ? std::move(first) : finished(std::move(all));
}

Result<ExprPtr> Parser::sum() {
  const int line = now().line;
  ExprPtr left = SPARROW_TRY(concatenation());
  while (now().is_operator("+") || now().is_operator("-")) {
    const std::string op = take().text;
    left = make_expr(ExprKind::kBinary, line, std::move(left), SPARROW_TRY(concatenation()));
    left->name = op;
    left = SPARROW_TRY(finished(std::move(left)));
  }
  return left;
}

Result<ExprPtr> Parser::concatenation() {
  const int line = now().line;
  ExprPtr first = SPARROW_TRY(product());
  if (!now().is_operator("~")) return first;
  ExprPtr all = make_expr(ExprKind::kConcat, line, std::move(first));
  while (skip_operator("~")) all->kids.push_back(SPARROW_TRY(product()));
  return finished(std::move(all));
}

Result<ExprPtr> Parser::product() {
  const int line = now().line;
  ExprPtr left = SPARROW_TRY(power());
  while (now().is_operator("*") || now().is_operator("/") || now().is_operator("//") ||
         now().is_operator("%")) {
    const std::string op = take().text;
    left = make_expr(ExprKind::kBinary, line, std::move(left), SPARROW_TRY(power()));
    left->name = op;
    left = SPARROW_TRY(finished(std::move(left)));
  }
  return left;
}

Result<ExprPtr> Parser::power() {
  const int line = now().line;
  ExprPtr left = SPARROW_TRY(unary(/*with_filter=*/true));
  while (skip_operator("**")) {
    left = make_expr(ExprKind::kBinary, line, std::move(left), SPARROW_TRY(unary(true)));
    left->name = "**";
    left = SPARROW_TRY(finished(std::move(left)));
  }
  return left;
}

Result<ExprPtr> Parser::unary(bool with_filter) {
  Nesting nesting(depth_);
  SPARROW_TRY(nesting.check(now().line));
  const int line = now().line;
  ExprPtr expr;
  if (skip_operator("-")) {
    expr = SPARROW_TRY(finished(make_expr(ExprKind::kNegate, line, SPARROW_TRY(unary(false)))));
  } else if (skip_operator("+")) {
    expr = SPARROW_TRY(finished(make_expr(ExprKind::kPlus, line, SPARROW_TRY(unary(false)))));
  } else {
    expr = SPARROW_TRY(primary(/*with_namespace=*/false));
  }
  expr = SPARROW_TRY(postfix(std::move(expr)));
  return with_filter ? filters_and_tests(std::move(expr)) : std::move(expr);
}

Result<ExprPtr> Parser::filters_and_tests(ExprPtr base) {
  while (true) {
    if (now().is_operator("|")) {
      base = SPARROW_TRY(filter_chain(std::move(base), /*starts_inline=*/false));
    } else if (now().is_name("is")) {
      base = SPARROW_TRY(test(std::move(base)));
    } else if (now().is_operator("(")) {
      base = SPARROW_TRY(postfix(std::move(base)));
    } else {
      return base;
    }
  }
}

Result<ExprPtr> Parser::filter_chain(ExprPtr base, bool starts_inline) {
  while (starts_inline || now().is_operator("|")) {
    if (!starts_inline) take();
    starts_inline = false;
    ExprPtr filter = make_expr(ExprKind::kFilter, now().line, std::move(base));
    filter->name = SPARROW_TRY(take_name());
    if (now().is_operator("(")) filter->args = SPARROW_TRY(call_args());
    if (branches_ == 0 && find_filter(filter->name) == nullptr)
      return syntax_error(filter->line, strf("No filter named '{}'.", filter->name));
    base = SPARROW_TRY(finished(std::move(filter)));
  }
  return base;
}

Result<ExprPtr> Parser::test(ExprPtr base) {
  const int line = take().line;
  const bool negated = skip_name("not");
  ExprPtr expr = make_expr(ExprKind::kTest, line, std::move(base));
  expr->name = SPARROW_TRY(take_name());
  const bool value_follows = now().kind == TokenKind::kName || now().kind == TokenKind::kString ||
                             now().kind == TokenKind::kInteger || now().kind == TokenKind::kFloat ||
                             now().is_operator("[") || now().is_operator("{");
  if (now().is_operator("(")) {
    expr->args = SPARROW_TRY(call_args());
  } else if (value_follows && !now().is_name("else") && !now().is_name("or") && !now().is_name("and")) {
    if (now().is_name("is")) return syntax_error(line, "You cannot chain multiple tests with is");
    ExprPtr argument = SPARROW_TRY(primary(/*with_namespace=*/false));
    expr->args.positional.push_back(SPARROW_TRY(postfix(std::move(argument))));
  }
  if (branches_ == 0 && find_test(expr->name) == nullptr)
    return syntax_error(line, strf("No test named '{}'.", expr->name));
  expr = SPARROW_TRY(finished(std::move(expr)));
  return negated ? finished(make_expr(ExprKind::kNot, line, std::move(expr))) : std::move(expr);
}

}  // namespace sparrow::jinja
