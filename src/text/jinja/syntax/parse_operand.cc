// SPDX-License-Identifier: Apache-2.0
// Operands: literals, names, tuples, targets of assignments, and the attributes, items and calls behind them.
#include <charconv>
#include <limits>

#include "base/check.h"
#include "base/strf.h"
#include "text/jinja/syntax/parser.h"
#include "text/jinja/syntax/parser_nodes.h"

namespace sparrow::jinja {

namespace {

ExprPtr make_constant(int line, const Value& value) {
  ExprPtr expr = make_expr(ExprKind::kConst, line);
  expr->constant = value;
  return expr;
}

bool all_zero(std::string_view digits) {
  return digits.find_first_not_of('0') == std::string_view::npos;
}

// Digits in base 2, 8, 10 or 16. One too large for 64 bits keeps its digits, those of the token, if they are
// decimal.
Result<ExprPtr> integer_constant(const Token& token) {
  std::string_view digits = token.text;
  int base = 10;
  if (digits.size() > 2 && digits[0] == '0' && (digits[1] | 0x20) > '9') {
    base = (digits[1] | 0x20) == 'x' ? 16 : (digits[1] | 0x20) == 'o' ? 8 : 2;
    digits.remove_prefix(2);
  }
  int64_t value = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (parsed.ec == std::errc() || all_zero(digits)) return make_constant(token.line, int_value(value));
  if (base != 10 || digits.size() > 4300)
    return syntax_error(token.line, strf("the integer {} is too large", token.described()));
  return make_constant(token.line, text_value(digits, Kind::kBigInt));
}

ExprPtr float_constant(const Token& token) {
  double value = 0;
  const auto parsed = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
  // from_chars leaves the value alone when it is out of range.
  if (parsed.ec == std::errc::result_out_of_range) {
    const size_t exponent = token.text.find_first_of("eE");
    const bool tiny = exponent != std::string::npos && token.text[exponent + 1] == '-';
    value = tiny ? 0.0 : std::numeric_limits<double>::infinity();
  }
  return make_constant(token.line, float_value(value));
}

}  // namespace

Value Parser::literal(std::string_view text, Kind kind) {
  if (text.empty()) return text_value("", kind);
  const size_t start = literals_.size();
  SPARROW_CHECK(text.size() <= literals_.capacity() - start);
  literals_.insert(literals_.end(), text.begin(), text.end());
  return text_value({literals_.data() + start, text.size()}, kind);
}

Result<ExprPtr> Parser::primary(bool with_namespace) {
  const int line = now().line;
  if (now().kind == TokenKind::kName) {
    const std::string name = take().text;
    if (name == "true" || name == "True") return make_constant(line, bool_value(true));
    if (name == "false" || name == "False") return make_constant(line, bool_value(false));
    if (name == "none" || name == "None") return make_constant(line, none_value());
    names_.insert(name);
    ExprPtr expr = make_expr(ExprKind::kName, line);
    expr->name = name;
    if (with_namespace && skip_operator(".")) {
      expr->kind = ExprKind::kNamespaceRef;
      expr->attribute = SPARROW_TRY(take_name());
    }
    return expr;
  }
  if (now().kind == TokenKind::kString) {
    std::string text;
    while (now().kind == TokenKind::kString) text += take().text;
    return make_constant(line, literal(text, Kind::kString));
  }
  if (now().kind == TokenKind::kInteger) {
    const Token token = take();
    ExprPtr expr = SPARROW_TRY(integer_constant(token));
    if (expr->constant.is(Kind::kBigInt)) expr->constant = literal(expr->constant.view(), Kind::kBigInt);
    return expr;
  }
  if (now().kind == TokenKind::kFloat) return float_constant(take());
  if (skip_operator("(")) {
    ExprPtr expr = SPARROW_TRY(tuple_or_expression(Condition::kAllowed, /*in_parentheses=*/true, ""));
    SPARROW_TRY(expect_operator(")"));
    return expr;
  }
  if (now().is_operator("[")) return list_literal();
  if (now().is_operator("{")) return dict_literal();
  return unexpected("an expression");
}

Result<ExprPtr> Parser::tuple_or_expression(Condition condition, bool in_parentheses,
                                            std::string_view end_name) {
  const int line = now().line;
  ExprPtr tuple = make_expr(ExprKind::kTuple, line);
  bool is_tuple = false;
  while (true) {
    const TokenKind kind = now().kind;
    const bool at_end =
        kind == TokenKind::kVariableEnd || kind == TokenKind::kBlockEnd || now().is_operator(")");
    if (at_end || (!end_name.empty() && now().is_name(end_name))) break;
    tuple->kids.push_back(SPARROW_TRY(expression(condition)));
    if (!skip_operator(",")) break;
    is_tuple = true;
  }
  if (is_tuple || (tuple->kids.empty() && in_parentheses)) return finished(std::move(tuple));
  if (tuple->kids.empty()) return unexpected("an expression");
  return std::move(tuple->kids[0]);
}

Status Parser::check_target(const Expr& expr) const {
  if (expr.kind == ExprKind::kName || expr.kind == ExprKind::kNamespaceRef) return Ok{};
  if (expr.kind != ExprKind::kTuple) return syntax_error(expr.line, "can't assign to this expression");
  for (const ExprPtr& kid : expr.kids) SPARROW_TRY(check_target(*kid));
  return Ok{};
}

Result<ExprPtr> Parser::target(bool with_tuple, bool with_namespace) {
  Nesting nesting(depth_);
  SPARROW_TRY(nesting.check(now().line));
  ExprPtr tuple = make_expr(ExprKind::kTuple, now().line);
  bool is_tuple = false;
  while (true) {
    if (is_tuple && (now().is_name("in") || now().is_operator("=") || now().kind == TokenKind::kBlockEnd))
      break;
    tuple->kids.push_back(SPARROW_TRY(primary(with_namespace)));
    if (!with_tuple || !skip_operator(",")) break;
    is_tuple = true;
  }
  ExprPtr expr = is_tuple ? std::move(tuple) : std::move(tuple->kids[0]);
  SPARROW_TRY(check_target(*expr));
  return finished(std::move(expr));
}

Result<ExprPtr> Parser::list_literal() {
  ExprPtr list = make_expr(ExprKind::kList, take().line);
  while (!now().is_operator("]")) {
    if (!list->kids.empty()) SPARROW_TRY(expect_operator(","));
    if (now().is_operator("]")) break;
    list->kids.push_back(SPARROW_TRY(expression()));
  }
  take();
  return finished(std::move(list));
}

Result<ExprPtr> Parser::dict_literal() {
  ExprPtr dict = make_expr(ExprKind::kDict, take().line);
  while (!now().is_operator("}")) {
    if (!dict->kids.empty()) SPARROW_TRY(expect_operator(","));
    if (now().is_operator("}")) break;
    dict->kids.push_back(SPARROW_TRY(expression()));
    SPARROW_TRY(expect_operator(":"));
    dict->kids.push_back(SPARROW_TRY(expression()));
  }
  take();
  return finished(std::move(dict));
}

Result<ExprPtr> Parser::postfix(ExprPtr base) {
  while (true) {
    const int line = now().line;
    if (now().is_operator(".") || now().is_operator("[")) {
      base = SPARROW_TRY(subscript(std::move(base)));
    } else if (now().is_operator("(")) {
      ExprPtr call = make_expr(ExprKind::kCall, line, std::move(base));
      call->args = SPARROW_TRY(call_args());
      base = SPARROW_TRY(finished(std::move(call)));
    } else {
      return base;
    }
  }
}

Result<ExprPtr> Parser::subscript(ExprPtr base) {
  const int line = now().line;
  if (skip_operator(".")) {
    if (now().kind == TokenKind::kName) {
      ExprPtr expr = make_expr(ExprKind::kGetattr, line, std::move(base));
      expr->name = take().text;
      return finished(std::move(expr));
    }
    if (now().kind != TokenKind::kInteger) return unexpected("a name or number");
    return finished(
        make_expr(ExprKind::kGetitem, line, std::move(base), SPARROW_TRY(integer_constant(take()))));
  }
  take();
  ExprPtr parts = make_expr(ExprKind::kTuple, line);
  while (!now().is_operator("]")) {
    if (!parts->kids.empty()) SPARROW_TRY(expect_operator(","));
    parts->kids.push_back(SPARROW_TRY(subscript_part()));
  }
  take();
  ExprPtr index =
      parts->kids.size() == 1 ? std::move(parts->kids[0]) : SPARROW_TRY(finished(std::move(parts)));
  return finished(make_expr(ExprKind::kGetitem, line, std::move(base), std::move(index)));
}

Result<ExprPtr> Parser::subscript_part() {
  const auto at_end = [this] { return now().is_operator("]") || now().is_operator(","); };
  ExprPtr slice = make_expr(ExprKind::kSlice, now().line);
  slice->kids.resize(3);
  if (!now().is_operator(":")) {
    ExprPtr first = SPARROW_TRY(expression());
    if (!now().is_operator(":")) return first;
    slice->kids[0] = std::move(first);
  }
  take();
  if (!now().is_operator(":") && !at_end()) slice->kids[1] = SPARROW_TRY(expression());
  if (skip_operator(":") && !at_end()) slice->kids[2] = SPARROW_TRY(expression());
  return finished(std::move(slice));
}

Result<CallArgs> Parser::call_args() {
  const int line = now().line;
  const Error bad = syntax_error(line, "invalid syntax for function call expression");
  CallArgs args;
  SPARROW_TRY(expect_operator("("));
  bool any = false;
  while (!now().is_operator(")")) {
    if (any) SPARROW_TRY(expect_operator(","));
    if (any && now().is_operator(")")) break;
    any = true;
    if (skip_operator("*")) {
      if (args.star != nullptr || args.double_star != nullptr) return bad;
      args.star = SPARROW_TRY(expression());
    } else if (skip_operator("**")) {
      if (args.double_star != nullptr) return bad;
      args.double_star = SPARROW_TRY(expression());
    } else if (now().kind == TokenKind::kName && look().is_operator("=")) {
      if (args.double_star != nullptr) return bad;
      std::string name = take().text;
      take();
      args.named.emplace_back(std::move(name), SPARROW_TRY(expression()));
    } else {
      if (args.star != nullptr || args.double_star != nullptr || !args.named.empty()) return bad;
      args.positional.push_back(SPARROW_TRY(expression()));
    }
  }
  take();
  return args;
}

}  // namespace sparrow::jinja
