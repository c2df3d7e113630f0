// SPDX-License-Identifier: Apache-2.0
// What a template defines while it runs: scopes, macros, the loop variable.
#pragma once

#include <string_view>

#include "text/jinja/syntax/ast.h"
#include "text/jinja/value/value.h"

namespace sparrow::jinja {

struct Scope {
  Scope* parent = nullptr;
  Bindings names;
};

// A macro, or the caller() of a call block: its statement and the scope it was defined in.
struct MacroNode {
  const Stmt* stmt = nullptr;
  Scope* scope = nullptr;

  std::string_view name() const { return stmt->name; }
};

// `loop` inside a for.
struct LoopNode {
  const Stmt* stmt = nullptr;
  Scope* scope = nullptr;  // around the loop
  std::span<const Value> items;
  size_t index = 0;
  int depth = 1;
  Value changed;  // what loop.changed() saw last, a tuple
  bool has_changed = false;
};

}  // namespace sparrow::jinja
