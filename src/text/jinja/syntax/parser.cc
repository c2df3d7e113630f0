// SPDX-License-Identifier: Apache-2.0
// Statements.
#include "text/jinja/syntax/parser.h"

#include <algorithm>

#include "base/strf.h"
#include "base/utf8.h"
#include "text/jinja/syntax/parser_nodes.h"

namespace sparrow::jinja {

Result<Template> parse_template(std::string_view source) {
  const size_t bad = valid_utf8_prefix(source);
  if (bad < source.size()) {
    const std::string_view before = source.substr(0, bad);
    return syntax_error(1 + static_cast<int>(std::count(before.begin(), before.end(), '\n')),
                        strf("byte {} is not valid UTF-8", bad));
  }
  return Parser(SPARROW_TRY(tokenize(source))).run();
}

bool Parser::skip_name(std::string_view name) {
  if (!now().is_name(name)) return false;
  take();
  return true;
}

bool Parser::skip_operator(std::string_view op) {
  if (!now().is_operator(op)) return false;
  take();
  return true;
}

Error Parser::unexpected(std::string_view expected) const {
  return syntax_error(now().line, strf("expected {}, got '{}'", expected, now().described()));
}

Status Parser::expect_name(std::string_view name) {
  if (skip_name(name)) return Ok{};
  return unexpected(strf("'{}'", name));
}

Status Parser::expect_operator(std::string_view op) {
  if (skip_operator(op)) return Ok{};
  return unexpected(strf("'{}'", op));
}

Status Parser::expect(TokenKind kind, std::string_view what) {
  if (now().kind != kind) return unexpected(what);
  take();
  return Ok{};
}

Result<std::string> Parser::take_name() {
  if (now().kind != TokenKind::kName) return unexpected("a name");
  return take().text;
}

Parser::Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
  size_t bytes = 0;
  for (const Token& token : tokens_) bytes += token.text.size();
  literals_.reserve(bytes);
}

Result<Template> Parser::run() {
  Body body = SPARROW_TRY(statements({}));
  return Template{std::move(body), std::move(literals_)};
}

Result<Body> Parser::statements(const Names& ends) {
  Nesting nesting(depth_);
  SPARROW_TRY(nesting.check(now().line));
  Body body;
  while (now().kind != TokenKind::kEof) {
    if (now().kind == TokenKind::kData) {
      const Token data = take();
      body.push_back(Stmt{.kind = StmtKind::kText, .line = data.line, .text = data.text});
    } else if (now().kind == TokenKind::kVariableBegin) {
      Stmt stmt{.kind = StmtKind::kOutput, .line = take().line};
      stmt.exprs.push_back(SPARROW_TRY(tuple_or_expression(Condition::kAllowed, false, "")));
      SPARROW_TRY(expect(TokenKind::kVariableEnd, "end of print statement"));
      body.push_back(std::move(stmt));
    } else {
      SPARROW_TRY(expect(TokenKind::kBlockBegin, "a tag"));
      if (now().kind == TokenKind::kName && std::find(ends.begin(), ends.end(), now().text) != ends.end())
        return body;
      body.push_back(SPARROW_TRY(statement()));
      SPARROW_TRY(expect(TokenKind::kBlockEnd, "end of statement block"));
    }
  }
  if (ends.empty()) return body;
  std::string wanted;
  for (const std::string_view end : ends) wanted += strf("{}'{}'", wanted.empty() ? "" : " or ", end);
  return syntax_error(now().line, strf("unexpected end of template, looking for {}", wanted));
}

Result<Body> Parser::block_body(const Names& ends) {
  skip_operator(":");
  SPARROW_TRY(expect(TokenKind::kBlockEnd, "end of statement block"));
  return statements(ends);
}

Result<Body> Parser::whole_body(std::string_view end) {
  Body body = SPARROW_TRY(block_body({end}));
  take();
  return body;
}

Result<Stmt> Parser::statement() {
  struct Tag {
    std::string_view name;
    Result<Stmt> (Parser::*parse)();
  };
  static constexpr Tag kTags[] = {
      {"if", &Parser::if_statement},
      {"for", &Parser::for_statement},
      {"set", &Parser::set_statement},
      {"macro", &Parser::macro_statement},
      {"call", &Parser::call_block},
      {"filter", &Parser::filter_block},
      {"with", &Parser::with_statement},
      {"print", &Parser::print_statement},
      {"break", &Parser::loop_control},
      {"continue", &Parser::loop_control},
      {"generation", &Parser::generation_block},
  };
  if (now().kind != TokenKind::kName) return unexpected("the name of a tag");
  for (const Tag& tag : kTags)
    if (now().text == tag.name) return (this->*tag.parse)();
  return syntax_error(now().line, strf("unknown or unsupported tag '{}'", now().described()));
}

Result<Stmt> Parser::if_statement() {
  Stmt stmt{.kind = StmtKind::kIf, .line = take().line};
  ++branches_;
  while (true) {
    stmt.exprs.push_back(SPARROW_TRY(tuple_or_expression(Condition::kForbidden, false, "")));
    stmt.bodies.push_back(SPARROW_TRY(block_body({"elif", "else", "endif"})));
    const std::string end = take().text;
    if (end == "elif") continue;
    if (end == "else") stmt.bodies.push_back(SPARROW_TRY(whole_body("endif")));
    --branches_;
    return stmt;
  }
}

Result<Stmt> Parser::for_statement() {
  Stmt stmt{.kind = StmtKind::kFor, .line = take().line};
  stmt.target = SPARROW_TRY(target(/*with_tuple=*/true, /*with_namespace=*/false));
  SPARROW_TRY(expect_name("in"));
  stmt.exprs.push_back(SPARROW_TRY(tuple_or_expression(Condition::kForbidden, false, "recursive")));
  stmt.exprs.push_back(skip_name("if") ? SPARROW_TRY(expression()) : ExprPtr());
  stmt.recursive = skip_name("recursive");
  ++loops_;
  stmt.bodies.push_back(SPARROW_TRY(block_body({"endfor", "else"})));
  --loops_;
  const bool has_else = take().text == "else";
  stmt.bodies.push_back(has_else ? SPARROW_TRY(whole_body("endfor")) : Body());
  return stmt;
}

Result<Stmt> Parser::set_statement() {
  Stmt stmt{.kind = StmtKind::kSet, .line = take().line};
  stmt.target = SPARROW_TRY(target(/*with_tuple=*/true, /*with_namespace=*/true));
  if (skip_operator("=")) {
    stmt.exprs.push_back(SPARROW_TRY(tuple_or_expression(Condition::kAllowed, false, "")));
    return stmt;
  }
  stmt.kind = StmtKind::kSetBlock;
  stmt.exprs.push_back(SPARROW_TRY(filter_chain(nullptr, /*starts_inline=*/false)));
  stmt.bodies.push_back(SPARROW_TRY(whole_body("endset")));
  return stmt;
}

Status Parser::signature(Stmt& stmt) {
  SPARROW_TRY(expect_operator("("));
  while (!now().is_operator(")")) {
    if (!stmt.params.empty()) SPARROW_TRY(expect_operator(","));
    Param param{.name = SPARROW_TRY(take_name()), .fallback = nullptr};
    if (skip_operator("=")) {
      param.fallback = SPARROW_TRY(expression());
    } else if (!stmt.params.empty() && stmt.params.back().fallback != nullptr) {
      return syntax_error(now().line, "non-default argument follows default argument");
    }
    stmt.params.push_back(std::move(param));
  }
  return expect_operator(")");
}

// The body of a macro or call block: a function of its own, so loops around it are out of reach.
Result<Body> Parser::callable_body(Stmt& stmt, std::string_view end) {
  std::set<std::string> outer = std::exchange(names_, {});
  const int loops = std::exchange(loops_, 0);
  Body body = SPARROW_TRY(whole_body(end));
  loops_ = loops;
  stmt.uses_varargs = names_.contains("varargs");
  stmt.uses_kwargs = names_.contains("kwargs");
  stmt.uses_caller = names_.contains("caller");
  names_.merge(outer);
  return body;
}

Result<Stmt> Parser::macro_statement() {
  Stmt stmt{.kind = StmtKind::kMacro, .line = take().line};
  stmt.name = SPARROW_TRY(take_name());
  SPARROW_TRY(signature(stmt));
  stmt.bodies.push_back(SPARROW_TRY(callable_body(stmt, "endmacro")));
  return stmt;
}

Result<Stmt> Parser::call_block() {
  Stmt stmt{.kind = StmtKind::kCallBlock, .line = take().line};
  if (now().is_operator("(")) SPARROW_TRY(signature(stmt));
  stmt.exprs.push_back(SPARROW_TRY(expression()));
  if (stmt.exprs[0]->kind != ExprKind::kCall) return syntax_error(stmt.line, "expected call");
  stmt.name = "caller";
  stmt.bodies.push_back(SPARROW_TRY(callable_body(stmt, "endcall")));
  return stmt;
}

Result<Stmt> Parser::filter_block() {
  Stmt stmt{.kind = StmtKind::kFilterBlock, .line = take().line};
  stmt.exprs.push_back(SPARROW_TRY(filter_chain(nullptr, /*starts_inline=*/true)));
  stmt.bodies.push_back(SPARROW_TRY(whole_body("endfilter")));
  return stmt;
}

Result<Stmt> Parser::with_statement() {
  Stmt stmt{.kind = StmtKind::kWith, .line = take().line};
  while (now().kind != TokenKind::kBlockEnd) {
    if (!stmt.exprs.empty()) SPARROW_TRY(expect_operator(","));
    stmt.exprs.push_back(SPARROW_TRY(target(/*with_tuple=*/true, /*with_namespace=*/false)));
    SPARROW_TRY(expect_operator("="));
    stmt.exprs.push_back(SPARROW_TRY(expression()));
  }
  stmt.bodies.push_back(SPARROW_TRY(whole_body("endwith")));
  return stmt;
}

Result<Stmt> Parser::print_statement() {
  Stmt stmt{.kind = StmtKind::kOutput, .line = take().line};
  while (now().kind != TokenKind::kBlockEnd) {
    if (!stmt.exprs.empty()) SPARROW_TRY(expect_operator(","));
    stmt.exprs.push_back(SPARROW_TRY(expression()));
  }
  return stmt;
}

// Marks what the assistant said, for training. It renders as its body, in a scope of its own.
Result<Stmt> Parser::generation_block() {
  Stmt stmt{.kind = StmtKind::kScope, .line = take().line};
  const int loops = std::exchange(loops_, 0);
  stmt.bodies.push_back(SPARROW_TRY(whole_body("endgeneration")));
  loops_ = loops;
  return stmt;
}

Result<Stmt> Parser::loop_control() {
  const Token tag = take();
  if (loops_ == 0) return syntax_error(tag.line, strf("'{}' outside loop", tag.text));
  return Stmt{.kind = tag.text == "break" ? StmtKind::kBreak : StmtKind::kContinue, .line = tag.line};
}

}  // namespace sparrow::jinja
