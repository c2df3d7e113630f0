// SPDX-License-Identifier: Apache-2.0
// Statements.
#include "text/jinja/run/interpreter.h"

#include <algorithm>

#include "base/strf.h"
#include "text/jinja/value/compare.h"
#include "text/jinja/value/format.h"

namespace sparrow::jinja {

namespace {

PromptText prompt_of(TextBuilder out) {
  PromptText prompt;
  const std::string_view origins = out.origins();
  for (size_t end = 0; end < origins.size();) {
    const size_t start = std::min(origins.size(), origins.find(kMarkup, end));
    end = std::min(origins.size(), origins.find(kData, start));
    if (start < end) prompt.markup.push_back({start, end});
  }
  prompt.text = out.take_text();
  return prompt;
}

}  // namespace

Status Interpreter::Deeper::check() const {
  if (self_.depth_ <= self_.heap_.limits().max_depth) return self_.heap_.spend(1);
  return template_error(strf("calls and blocks nest more than {} deep", self_.heap_.limits().max_depth));
}

Status Interpreter::define(std::string_view name, const Value& value) {
  return heap_.bind(globals_.names, name, value);
}

Result<PromptText> Interpreter::render(const Template& parsed) {
  heap_.set_literals({parsed.literals.data(), parsed.literals.size()});
  TextBuilder out(heap_);
  out_ = &out;
  // What the template sets at its top level must not be lost to a macro, so it joins the inputs.
  const Result<Flow> done = run(parsed.body);
  out_ = nullptr;
  if (done.ok()) return prompt_of(std::move(out));
  return Error{done.error().code, strf("chat template, line {}: {}", line_, done.error().message)};
}

Status Interpreter::spend_output(size_t bytes) {
  return heap_.spend_text(out_->size() + bytes > heap_.limits().max_output ? out_->size() + bytes : bytes);
}

Status Interpreter::append(std::string_view text) {
  SPARROW_TRY(spend_output(text.size()));
  *out_ += text;
  return Ok{};
}

Result<Interpreter::Flow> Interpreter::run(const Body& body) {
  for (const Stmt& stmt : body) {
    line_ = stmt.line;
    const Flow flow = SPARROW_TRY(execute(stmt));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::execute(const Stmt& stmt) {
  const Deeper deeper(*this);
  SPARROW_TRY(deeper.check());
  switch (stmt.kind) {
    case StmtKind::kText:
      SPARROW_TRY(spend_output(stmt.text.size()));
      out_->append(stmt.text, kMarkup);
      return Flow::kNext;
    case StmtKind::kOutput:
      SPARROW_TRY(execute_output(stmt));
      return Flow::kNext;
    case StmtKind::kIf:
      return execute_if(stmt);
    case StmtKind::kFor:
      return execute_for(stmt, SPARROW_TRY(evaluate(*stmt.exprs[0])), 1);
    case StmtKind::kSet:
      SPARROW_TRY(execute_set(stmt));
      return Flow::kNext;
    case StmtKind::kSetBlock:
      SPARROW_TRY(execute_set_block(stmt));
      return Flow::kNext;
    case StmtKind::kMacro:
      SPARROW_TRY(execute_macro(stmt));
      return Flow::kNext;
    case StmtKind::kCallBlock:
      SPARROW_TRY(execute_call_block(stmt));
      return Flow::kNext;
    case StmtKind::kFilterBlock:
      SPARROW_TRY(execute_filter_block(stmt));
      return Flow::kNext;
    case StmtKind::kWith:
      return execute_with(stmt);
    case StmtKind::kScope: {
      Scope* scope = SPARROW_TRY(heap_.make<Scope>());
      scope->parent = scope_;
      const NewScope inside(*this, scope);
      return run(stmt.bodies[0]);
    }
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::execute_if(const Stmt& stmt) {
  for (size_t i = 0; i < stmt.exprs.size(); ++i)
    if (is_true(SPARROW_TRY(evaluate(*stmt.exprs[i])))) return run(stmt.bodies[i]);
  if (stmt.bodies.size() > stmt.exprs.size()) return run(stmt.bodies.back());
  return Flow::kNext;
}

// What the loop goes over, after its filter.
Result<std::span<const Value>> Interpreter::loop_items(const Stmt& stmt, const Value& iterable) {
  const std::span<const Value> all = SPARROW_TRY(iterate(heap_, iterable));
  if (stmt.exprs[1] == nullptr) return all;
  std::vector<Value> kept;
  Scope scope{.parent = scope_, .names = {}};
  const NewScope inside(*this, &scope);
  for (const Value& value : all) {
    SPARROW_TRY(assign(*stmt.target, value));
    if (is_true(SPARROW_TRY(evaluate(*stmt.exprs[1])))) kept.push_back(value);
  }
  const Value list = SPARROW_TRY(heap_.list(kept));
  return std::span<const Value>(list.list->view());
}

Result<Interpreter::Flow> Interpreter::execute_for(const Stmt& stmt, const Value& iterable, int depth) {
  const std::span<const Value> items = SPARROW_TRY(loop_items(stmt, iterable));
  // On the heap: a macro defined in the body keeps a pointer to it.
  Scope* scope = SPARROW_TRY(heap_.make<Scope>());
  scope->parent = scope_;
  LoopNode* loop = SPARROW_TRY(heap_.make<LoopNode>());
  *loop = LoopNode{.stmt = &stmt, .scope = scope_, .items = items, .depth = depth, .changed = {}};
  Value loop_value;
  loop_value.kind = Kind::kLoop;
  loop_value.loop = loop;
  const NewScope inside(*this, scope);
  if (items.empty()) return run(stmt.bodies[1]);
  for (size_t i = 0; i < items.size(); ++i) {
    SPARROW_TRY(heap_.spend(1));
    line_ = stmt.line;
    loop->index = i;
    scope->names.size = 0;
    SPARROW_TRY(heap_.bind(scope->names, "loop", loop_value));
    SPARROW_TRY(assign(*stmt.target, items[i]));
    if (SPARROW_TRY(run(stmt.bodies[0])) == Flow::kBreak) break;
  }
  return Flow::kNext;
}

Status Interpreter::execute_output(const Stmt& stmt) {
  for (const ExprPtr& expr : stmt.exprs) {
    const Value value = SPARROW_TRY(evaluate(*expr));
    line_ = stmt.line;
    SPARROW_TRY(append(SPARROW_TRY(str_view(heap_, value))));
  }
  return Ok{};
}

Status Interpreter::execute_set(const Stmt& stmt) {
  return assign(*stmt.target, SPARROW_TRY(evaluate(*stmt.exprs[0])));
}

Result<Value> Interpreter::captured(const Body& body) {
  Scope* scope = SPARROW_TRY(heap_.make<Scope>());
  scope->parent = scope_;
  const NewScope inside(*this, scope);
  TextBuilder text(heap_);
  TextBuilder* const before = std::exchange(out_, &text);
  const Result<Flow> done = run(body);
  out_ = before;
  if (!done.ok()) return Error(done.error());
  return heap_.string(text);
}

Status Interpreter::execute_set_block(const Stmt& stmt) {
  Value value = SPARROW_TRY(captured(stmt.bodies[0]));
  if (stmt.exprs[0] != nullptr) value = SPARROW_TRY(filtered(*stmt.exprs[0], value));
  return assign(*stmt.target, value);
}

Status Interpreter::execute_filter_block(const Stmt& stmt) {
  const Value value = SPARROW_TRY(filtered(*stmt.exprs[0], SPARROW_TRY(captured(stmt.bodies[0]))));
  return append(SPARROW_TRY(str_view(heap_, value)));
}

Result<Value> Interpreter::make_macro(const Stmt& stmt) {
  MacroNode* node = SPARROW_TRY(heap_.make<MacroNode>());
  node->stmt = &stmt;
  node->scope = scope_;
  Value macro;
  macro.kind = Kind::kMacro;
  macro.macro = node;
  return macro;
}

Status Interpreter::execute_macro(const Stmt& stmt) {
  return heap_.bind(scope_->names, stmt.name, SPARROW_TRY(make_macro(stmt)));
}

Status Interpreter::execute_call_block(const Stmt& stmt) {
  const Value caller = SPARROW_TRY(make_macro(stmt));
  const Value value = SPARROW_TRY(call(*stmt.exprs[0], &caller));
  return append(SPARROW_TRY(str_view(heap_, value)));
}

Result<Interpreter::Flow> Interpreter::execute_with(const Stmt& stmt) {
  std::vector<Value> values;
  for (size_t i = 0; i < stmt.exprs.size(); i += 2)
    values.push_back(SPARROW_TRY(evaluate(*stmt.exprs[i + 1])));
  Scope* scope = SPARROW_TRY(heap_.make<Scope>());
  scope->parent = scope_;
  const NewScope inside(*this, scope);
  for (size_t i = 0; i < values.size(); ++i) SPARROW_TRY(assign(*stmt.exprs[2 * i], values[i]));
  return run(stmt.bodies[0]);
}

Status Interpreter::assign(const Expr& target, const Value& value) {
  if (target.kind == ExprKind::kName) return heap_.bind(scope_->names, target.name, value);
  if (target.kind == ExprKind::kNamespaceRef) return assign_attribute(target, value);
  const std::span<const Value> items = SPARROW_TRY(iterate(heap_, value));
  if (items.size() < target.kids.size())
    return template_error(
        strf("not enough values to unpack (expected {}, got {})", target.kids.size(), items.size()));
  if (items.size() > target.kids.size())
    return template_error(strf("too many values to unpack (expected {})", target.kids.size()));
  for (size_t i = 0; i < items.size(); ++i) SPARROW_TRY(assign(*target.kids[i], items[i]));
  return Ok{};
}

Status Interpreter::assign_attribute(const Expr& target, const Value& value) {
  const Value space = SPARROW_TRY(lookup(target.name));
  if (space.is_undefined()) return template_error(undefined_message(space));
  if (!space.is(Kind::kNamespace)) return template_error("cannot assign attribute on non-namespace object");
  if (target.attribute.starts_with('_'))
    return template_error(strf("a namespace cannot have the attribute '{}'", target.attribute));
  return heap_.bind(space.space->attributes, target.attribute, value);
}

}  // namespace sparrow::jinja
