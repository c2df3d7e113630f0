// SPDX-License-Identifier: Apache-2.0
// Expressions and calls.
#include <algorithm>

#include "base/strf.h"
#include "text/jinja/run/interpreter.h"
#include "text/jinja/value/compare.h"
#include "text/jinja/value/format.h"

namespace sparrow::jinja {

Result<Value> Interpreter::evaluate(const Expr& expr) {
  if (expr.kind == ExprKind::kConst) return expr.constant;
  const Deeper deeper(*this);
  SPARROW_TRY(deeper.check());
  const int before = std::exchange(line_, expr.line);
  Result<Value> value = compute(expr);
  // On an error the line stays where it happened.
  if (value.ok()) line_ = before;
  return value;
}

Result<Value> Interpreter::compute(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kConst:
      return expr.constant;
    case ExprKind::kName:
      return lookup(expr.name);
    case ExprKind::kList:
      return sequence(expr, ListStyle::kList);
    case ExprKind::kTuple:
      return sequence(expr, ListStyle::kTuple);
    case ExprKind::kDict:
      return dict_literal(expr);
    case ExprKind::kGetattr:
      return attribute(context_, SPARROW_TRY(evaluate(*expr.kids[0])), expr.name);
    case ExprKind::kGetitem:
      return get_item(expr);
    case ExprKind::kCall:
      return call(expr, nullptr);
    case ExprKind::kFilter:
      return filter(expr);
    case ExprKind::kTest:
      return test(expr);
    case ExprKind::kNot:
      return bool_value(!is_true(SPARROW_TRY(evaluate(*expr.kids[0]))));
    case ExprKind::kNegate:
      return negate(SPARROW_TRY(evaluate(*expr.kids[0])));
    case ExprKind::kPlus:
      return binary(context_, "+", int_value(0), SPARROW_TRY(evaluate(*expr.kids[0])));
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      const Value left = SPARROW_TRY(evaluate(*expr.kids[0]));
      if (is_true(left) == (expr.kind == ExprKind::kOr)) return left;
      return evaluate(*expr.kids[1]);
    }
    case ExprKind::kBinary: {
      const Value left = SPARROW_TRY(evaluate(*expr.kids[0]));
      return binary(context_, expr.name, left, SPARROW_TRY(evaluate(*expr.kids[1])));
    }
    case ExprKind::kConcat:
      return concatenation(expr);
    case ExprKind::kCompare:
      return comparison(expr);
    case ExprKind::kConditional:
      return conditional(expr);
    case ExprKind::kSlice:
    case ExprKind::kNamespaceRef:
      break;
  }
  return template_error("a slice is only possible directly inside [ ]");
}

Result<Value> Interpreter::lookup(std::string_view name) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent)
    if (const Value* found = scope->names.find(name)) return *found;
  if (find_function(name) != nullptr) return text_value(name, Kind::kFunction);
  return undefined_value(name);
}

Result<Value> Interpreter::sequence(const Expr& expr, ListStyle style) {
  std::vector<Value> items;
  items.reserve(expr.kids.size());
  for (const ExprPtr& kid : expr.kids) items.push_back(SPARROW_TRY(evaluate(*kid)));
  return heap_.list(items, style);
}

Result<Value> Interpreter::dict_literal(const Expr& expr) {
  std::vector<Entry> entries;
  for (size_t i = 0; i < expr.kids.size(); i += 2) {
    const Value key = SPARROW_TRY(evaluate(*expr.kids[i]));
    entries.push_back({key, SPARROW_TRY(evaluate(*expr.kids[i + 1]))});
  }
  return heap_.dict(entries);
}

Result<Value> Interpreter::get_item(const Expr& expr) {
  const Value object = SPARROW_TRY(evaluate(*expr.kids[0]));
  const Expr& key = *expr.kids[1];
  if (key.kind != ExprKind::kSlice) return item(context_, object, SPARROW_TRY(evaluate(key)));
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i)
    bounds[i] = key.kids[i] == nullptr ? none_value() : SPARROW_TRY(evaluate(*key.kids[i]));
  return slice(context_, object, bounds[0], bounds[1], bounds[2]);
}

Result<Value> Interpreter::filter(const Expr& expr) {
  return filtered(expr, SPARROW_TRY(evaluate(*expr.kids[0])));
}

// The filter applied to `input`. In a chain that starts with nothing, as blocks have it, the input goes to
// its first filter.
Result<Value> Interpreter::filtered(const Expr& expr, const Value& input) {
  const Deeper deeper(*this);
  SPARROW_TRY(deeper.check());
  const Expr* first = &expr;
  while (first->kind == ExprKind::kFilter && first->kids[0] != nullptr) first = first->kids[0].get();
  const bool starts_with_input = first != &expr && first->kind == ExprKind::kFilter;
  const Value value = starts_with_input ? SPARROW_TRY(filtered(*expr.kids[0], input)) : input;
  const Filter function = find_filter(expr.name);
  if (function == nullptr) return template_error(strf("No filter named '{}'.", expr.name));
  return function(context_, value, SPARROW_TRY(arguments(expr.args)));
}

Result<Value> Interpreter::test(const Expr& expr) {
  const Value value = SPARROW_TRY(evaluate(*expr.kids[0]));
  const Test function = find_test(expr.name);
  if (function == nullptr) return template_error(strf("No test named '{}'.", expr.name));
  return bool_value(SPARROW_TRY(function(context_, value, SPARROW_TRY(arguments(expr.args)))));
}

Result<Value> Interpreter::concatenation(const Expr& expr) {
  Value all = text_value("");
  for (const ExprPtr& kid : expr.kids) {
    const Value part = SPARROW_TRY(evaluate(*kid));
    all = SPARROW_TRY(heap_.joined(all.view(), SPARROW_TRY(str_view(heap_, part))));
  }
  return all;
}

Result<Value> Interpreter::comparison(const Expr& expr) {
  Value left = SPARROW_TRY(evaluate(*expr.kids[0]));
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    const std::string& op = expr.ops[i];
    const Value right = SPARROW_TRY(evaluate(*expr.kids[i + 1]));
    bool holds = false;
    if (op == "==" || op == "!=") {
      holds = SPARROW_TRY(equal(heap_, left, right)) == (op == "==");
    } else if (op == "in" || op == "not in") {
      holds = SPARROW_TRY(contains(heap_, right, left)) == (op == "in");
    } else {
      const int sign = SPARROW_TRY(order(heap_, left, right, op));
      holds = op == "<" ? sign < 0 : op == "<=" ? sign <= 0 : op == ">" ? sign > 0 : sign >= 0;
    }
    if (!holds) return bool_value(false);
    left = right;
  }
  return bool_value(true);
}

Result<Value> Interpreter::conditional(const Expr& expr) {
  if (is_true(SPARROW_TRY(evaluate(*expr.kids[0])))) return evaluate(*expr.kids[1]);
  if (expr.kids[2] != nullptr) return evaluate(*expr.kids[2]);
  return undefined_value("the inline if-expression");
}

Result<Args> Interpreter::arguments(const CallArgs& args) {
  Args out;
  for (const ExprPtr& arg : args.positional) out.positional.push_back(SPARROW_TRY(evaluate(*arg)));
  for (const auto& [name, arg] : args.named) out.named.emplace_back(name, SPARROW_TRY(evaluate(*arg)));
  if (args.star != nullptr) {
    const Value more = SPARROW_TRY(evaluate(*args.star));
    for (const Value& value : SPARROW_TRY(iterate(heap_, more))) out.positional.push_back(value);
  }
  if (args.double_star != nullptr) {
    const Value more = SPARROW_TRY(evaluate(*args.double_star));
    if (!more.is(Kind::kDict)) return template_error("what follows ** must be a dict");
    for (const Entry& entry : more.dict->view()) {
      if (!entry.key.is_string()) return template_error("keywords must be strings");
      out.named.emplace_back(entry.key.view(), entry.value);
    }
  }
  return out;
}

Result<Value> Interpreter::call(const Expr& expr, const Value* caller) {
  const Value callee = SPARROW_TRY(evaluate(*expr.kids[0]));
  Args args = SPARROW_TRY(arguments(expr.args));
  if (caller != nullptr) args.named.emplace_back("caller", *caller);
  return call_value(callee, args);
}

Result<Value> Interpreter::call_value(const Value& callee, const Args& args) {
  switch (callee.kind) {
    case Kind::kMacro:
      return call_macro(*callee.macro, args);
    case Kind::kFunction:
      return find_function(callee.view())(context_, args);
    case Kind::kMethod:
      return call_method(context_, callee.method->self, callee.method->name, args);
    case Kind::kLoop:
      return call_loop(*callee.loop, args);
    case Kind::kUndefined:
      return template_error(undefined_message(callee));
    default:
      return template_error(strf("'{}' object is not callable", type_name(callee)));
  }
}

Result<Value> Interpreter::call_macro(const MacroNode& macro, const Args& args) {
  const Deeper deeper(*this);
  SPARROW_TRY(deeper.check());
  Scope* scope = SPARROW_TRY(heap_.make<Scope>());
  scope->parent = macro.scope;
  const NewScope inside(*this, scope);
  SPARROW_TRY(bind_parameters(macro, args, *scope));
  const int line = line_;
  TextBuilder text(heap_);
  TextBuilder* const before = std::exchange(out_, &text);
  const Result<Flow> done = run(macro.stmt->bodies[0]);
  out_ = before;
  if (!done.ok()) return Error(done.error());
  line_ = line;
  return heap_.string(text);
}

Status Interpreter::bind_parameters(const MacroNode& macro, const Args& args, Scope& scope) {
  const Stmt& stmt = *macro.stmt;
  for (size_t i = 0; i < stmt.params.size(); ++i) {
    const Param& param = stmt.params[i];
    const auto named = std::find_if(args.named.begin(), args.named.end(),
                                    [&](const auto& arg) { return arg.first == param.name; });
    Value value = undefined_value(param.name);
    if (i < args.positional.size()) {
      value = args.positional[i];
    } else if (named != args.named.end()) {
      value = named->second;
    } else if (param.fallback != nullptr) {
      value = SPARROW_TRY(evaluate(*param.fallback));
    }
    SPARROW_TRY(heap_.bind(scope.names, param.name, value));
  }
  return bind_extras(stmt, args, scope);
}

// What no parameter takes: varargs, kwargs and caller, each only where the macro mentions it.
Status Interpreter::bind_extras(const Stmt& stmt, const Args& args, Scope& scope) {
  std::vector<Value> rest;
  if (args.positional.size() > stmt.params.size())
    rest.assign(args.positional.begin() + static_cast<std::ptrdiff_t>(stmt.params.size()),
                args.positional.end());
  if (!rest.empty() && !stmt.uses_varargs)
    return template_error(
        strf("macro '{}' takes not more than {} argument(s)", stmt.name, stmt.params.size()));
  std::vector<Entry> others;
  for (const auto& [name, value] : args.named) {
    const auto param = std::find_if(stmt.params.begin(), stmt.params.end(),
                                    [name = name](const Param& p) { return p.name == name; });
    if (param != stmt.params.end()) {
      if (static_cast<size_t>(param - stmt.params.begin()) < args.positional.size())
        return template_error(strf("macro '{}' got multiple values for argument '{}'", stmt.name, name));
    } else if (name == "caller" && stmt.uses_caller) {
      SPARROW_TRY(heap_.bind(scope.names, "caller", value));
    } else if (stmt.uses_kwargs) {
      others.push_back({text_value(name), value});
    } else {
      return template_error(strf("macro '{}' takes no keyword argument '{}'", stmt.name, name));
    }
  }
  if (stmt.uses_varargs)
    SPARROW_TRY(heap_.bind(scope.names, "varargs", SPARROW_TRY(heap_.list(rest, ListStyle::kTuple))));
  if (stmt.uses_kwargs) SPARROW_TRY(heap_.bind(scope.names, "kwargs", SPARROW_TRY(heap_.dict(others))));
  return Ok{};
}

// loop(children) in a recursive loop.
Result<Value> Interpreter::call_loop(LoopNode& loop, const Args& args) {
  if (!loop.stmt->recursive)
    return template_error("The loop must have the 'recursive' marker to be called recursively.");
  if (args.positional.size() != 1 || !args.named.empty()) return template_error("loop() takes one argument");
  const Deeper deeper(*this);
  SPARROW_TRY(deeper.check());
  const NewScope inside(*this, loop.scope);
  TextBuilder text(heap_);
  TextBuilder* const out = std::exchange(out_, &text);
  const Result<Flow> done = execute_for(*loop.stmt, args.positional[0], loop.depth + 1);
  out_ = out;
  if (!done.ok()) return Error(done.error());
  return heap_.string(text);
}

}  // namespace sparrow::jinja
