// SPDX-License-Identifier: Apache-2.0
// Runs a parsed template once. It can reach its inputs and the builtins, and nothing else. One thread.
#pragma once

#include <ctime>
#include <string>
#include <string_view>

#include "text/jinja/builtins/builtins.h"
#include "text/jinja/run/macro.h"
#include "text/jinja/syntax/ast.h"
#include "text/jinja/value/heap.h"
#include "text/jinja/value/text_builder.h"
#include "text/prompt_text.h"

namespace sparrow::jinja {

class Interpreter {
 public:
  // The heap also holds the input values; it must outlive what render() works with.
  Interpreter(Heap& heap, const std::tm& now) : heap_(heap), context_{heap, now} {}

  Status define(std::string_view name, const Value& value);
  // Errors name the line: "chat template, line 3: 'user' is undefined".
  Result<PromptText> render(const Template& parsed);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class Deeper;
  class NewScope;

  // Statements (interpreter.cc).
  Result<Flow> run(const Body& body);
  Result<Flow> execute(const Stmt& stmt);
  Result<Flow> execute_if(const Stmt& stmt);
  Result<Flow> execute_for(const Stmt& stmt, const Value& iterable, int depth);
  Result<std::span<const Value>> loop_items(const Stmt& stmt, const Value& iterable);
  Status execute_output(const Stmt& stmt);
  Status execute_set(const Stmt& stmt);
  Status execute_set_block(const Stmt& stmt);
  Status execute_macro(const Stmt& stmt);
  Status execute_call_block(const Stmt& stmt);
  Status execute_filter_block(const Stmt& stmt);
  Result<Flow> execute_with(const Stmt& stmt);
  Status append(std::string_view text);
  Status spend_output(size_t bytes);
  // What the body prints, in a scope of its own.
  Result<Value> captured(const Body& body);
  Status assign(const Expr& target, const Value& value);
  Status assign_attribute(const Expr& target, const Value& value);
  Result<Value> make_macro(const Stmt& stmt);

  // Expressions (evaluate.cc).
  Result<Value> evaluate(const Expr& expr);
  Result<Value> compute(const Expr& expr);
  Result<Value> lookup(std::string_view name);
  Result<Value> sequence(const Expr& expr, ListStyle style);
  Result<Value> dict_literal(const Expr& expr);
  Result<Value> get_item(const Expr& expr);
  Result<Value> filter(const Expr& expr);
  Result<Value> filtered(const Expr& expr, const Value& input);
  Result<Value> test(const Expr& expr);
  Result<Value> concatenation(const Expr& expr);
  Result<Value> comparison(const Expr& expr);
  Result<Value> conditional(const Expr& expr);
  Result<Value> call(const Expr& expr, const Value* caller);
  Result<Args> arguments(const CallArgs& args);
  Result<Value> call_value(const Value& callee, const Args& args);
  Result<Value> call_macro(const MacroNode& macro, const Args& args);
  Status bind_parameters(const MacroNode& macro, const Args& args, Scope& scope);
  Status bind_extras(const Stmt& stmt, const Args& args, Scope& scope);
  Result<Value> call_loop(LoopNode& loop, const Args& args);

  Heap& heap_;
  Context context_;
  Scope globals_;
  Scope* scope_ = &globals_;
  TextBuilder* out_ = nullptr;
  int depth_ = 0;
  int line_ = 1;
};

// One level further down, for as long as it lives.
class Interpreter::Deeper {
 public:
  explicit Deeper(Interpreter& self) : self_(self) { ++self_.depth_; }
  ~Deeper() { --self_.depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;
  Status check() const;

 private:
  Interpreter& self_;
};

// Makes `scope` the current one, for as long as it lives.
class Interpreter::NewScope {
 public:
  NewScope(Interpreter& self, Scope* scope) : self_(self), before_(self.scope_) { self_.scope_ = scope; }
  ~NewScope() { self_.scope_ = before_; }
  NewScope(const NewScope&) = delete;
  NewScope& operator=(const NewScope&) = delete;

 private:
  Interpreter& self_;
  Scope* before_;
};

}  // namespace sparrow::jinja
