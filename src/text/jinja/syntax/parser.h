// SPDX-License-Identifier: Apache-2.0
// Tokens -> syntax tree. Follows jinja2's grammar, with a limit on nesting instead of a recursion limit.
#pragma once

#include <set>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/jinja/syntax/ast.h"
#include "text/jinja/syntax/lexer.h"

namespace sparrow::jinja {

Result<Template> parse_template(std::string_view source);

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens);

  Result<Template> run();

 private:
  struct Nesting;
  using Names = std::vector<std::string_view>;

  const Token& now() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool skip_name(std::string_view name);
  bool skip_operator(std::string_view op);
  Error unexpected(std::string_view expected) const;
  Status expect_name(std::string_view name);
  Status expect_operator(std::string_view op);
  Status expect(TokenKind kind, std::string_view what);
  Result<std::string> take_name();

  // Statements (parser.cc).
  Result<Body> statements(const Names& ends);
  // From the end of the opening tag to the name of the closing tag, which is the current token afterwards.
  Result<Body> block_body(const Names& ends);
  Result<Body> whole_body(std::string_view end);
  Result<Stmt> statement();
  Result<Stmt> if_statement();
  Result<Stmt> for_statement();
  Result<Stmt> set_statement();
  Result<Stmt> macro_statement();
  Result<Stmt> call_block();
  Result<Stmt> filter_block();
  Result<Stmt> with_statement();
  Result<Stmt> print_statement();
  Result<Stmt> generation_block();
  Result<Stmt> loop_control();
  Status signature(Stmt& stmt);
  Result<Body> callable_body(Stmt& stmt, std::string_view end);

  // Expressions (parse_expression.cc, parse_operand.cc).
  enum class Condition { kAllowed, kForbidden };
  Result<ExprPtr> expression(Condition condition = Condition::kAllowed);
  Result<ExprPtr> conditional();
  Result<ExprPtr> either();
  Result<ExprPtr> both();
  Result<ExprPtr> negation();
  Result<ExprPtr> comparison();
  Result<ExprPtr> sum();
  Result<ExprPtr> concatenation();
  Result<ExprPtr> product();
  Result<ExprPtr> power();
  Result<ExprPtr> unary(bool with_filter);
  Result<ExprPtr> primary(bool with_namespace);
  Result<ExprPtr> tuple_or_expression(Condition condition, bool in_parentheses, std::string_view end_name);
  Result<ExprPtr> target(bool with_tuple, bool with_namespace);
  Status check_target(const Expr& expr) const;
  Result<ExprPtr> list_literal();
  Result<ExprPtr> dict_literal();
  Result<ExprPtr> postfix(ExprPtr base);
  Result<ExprPtr> subscript(ExprPtr base);
  Result<ExprPtr> subscript_part();
  Result<CallArgs> call_args();
  Result<ExprPtr> filters_and_tests(ExprPtr base);
  Result<ExprPtr> filter_chain(ExprPtr base, bool starts_inline);
  Result<ExprPtr> test(ExprPtr base);
  Result<ExprPtr> finished(ExprPtr expr) const;
  Value literal(std::string_view text, Kind kind);

  std::vector<Token> tokens_;
  std::vector<char> literals_;  // never moves: it has room for all from the start
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;                // that break and continue may act on
  int branches_ = 0;             // jinja2 checks names of filters only outside of branches
  std::set<std::string> names_;  // mentioned since the innermost macro began
};

}  // namespace sparrow::jinja
