// SPDX-License-Identifier: Apache-2.0
// Regular expressions -> grammar: what ECMAScript, Python and RE2 have in common and a finite automaton can
// follow. There is nothing here that could backtrack. Look-ahead where the text begins is an intersection;
// other look-around, backreferences, word boundaries, flags and possessive quantifiers are errors that say
// what and where.
#pragma once

#include <string_view>

#include "text/constraint/grammar.h"
#include "text/constraint/regex/code_points.h"

namespace sparrow {

struct RegexOptions {
  Spelling spelling = Spelling::kRaw;
  bool search = false;  // the pattern may lie anywhere in the text, unless it is anchored
};

Result<NodeId> add_regex(Grammar& grammar, std::string_view pattern, const RegexOptions& options);

}  // namespace sparrow
