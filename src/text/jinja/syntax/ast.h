// SPDX-License-Identifier: Apache-2.0
// The parsed template. Read-only once built, so that any number of threads may render it at once.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value/value.h"

namespace sparrow::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind {
  kConst,
  kName,
  kList,     // kids
  kTuple,    // kids
  kDict,     // kids: key, value, key, value ...
  kGetattr,  // kids[0].name
  kGetitem,  // kids[0][kids[1]]
  kSlice,    // kids[0]:kids[1]:kids[2], any may be null; only as kids[1] of kGetitem
  kCall,     // kids[0](args)
  kFilter,   // kids[0] | name(args); kids[0] is null at the start of a filter block
  kTest,     // kids[0] is name(args)
  kNot,
  kNegate,
  kPlus,
  kAnd,
  kOr,
  kBinary,       // kids[0] name kids[1], name one of + - * / // % **
  kConcat,       // kids[0] ~ kids[1] ~ ...
  kCompare,      // kids[0] ops[0] kids[1] ops[1] ...
  kConditional,  // kids[1] if kids[0] else kids[2]; kids[2] may be null
  kNamespaceRef  // name.attribute, as a target of set
};

struct CallArgs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, double_star;
};

struct Expr {
  ExprKind kind;
  int line;
  int depth = 1;  // levels of expressions below, itself included
  std::string name, attribute;
  Value constant;  // its text lies in the template's literals
  std::vector<ExprPtr> kids;
  std::vector<std::string> ops;
  CallArgs args;
};

struct Stmt;
using Body = std::vector<Stmt>;

enum class StmtKind {
  kText,
  kOutput,       // exprs
  kIf,           // exprs: conditions; bodies: one for each, and one more for else
  kFor,          // target, exprs[0] iterable, exprs[1] filter or null; bodies: loop, else
  kSet,          // target, exprs[0]
  kSetBlock,     // target, exprs[0] filters or null; bodies[0]
  kMacro,        // name, params; bodies[0]
  kCallBlock,    // exprs[0] the call, params; bodies[0]
  kFilterBlock,  // exprs[0]; bodies[0]
  kWith,         // targets in exprs[even], values in exprs[odd]; bodies[0]
  kScope,        // bodies[0] with a scope of its own
  kBreak,
  kContinue,
};

struct Param {
  std::string name;
  ExprPtr fallback;
};

struct Stmt {
  StmtKind kind;
  int line;
  std::string text = {}, name = {};
  ExprPtr target = {};
  std::vector<ExprPtr> exprs = {};
  std::vector<Body> bodies = {};
  std::vector<Param> params = {};
  bool recursive = false;
  // Which of jinja2's implicit parameters the body of a macro mentions.
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

struct Template {
  Body body;
  // The text of all constants, in one piece: an address tells what the template wrote itself.
  std::vector<char> literals;
};

}  // namespace sparrow::jinja
