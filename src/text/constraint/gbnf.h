// SPDX-License-Identifier: Apache-2.0
// Grammars that clients write, in GBNF: `root ::= "yes" | [0-9]+ ("." digit{1,3})?`. Comments run from # to
// the end of the line. A rule that begins with itself is an error.
#pragma once

#include <string_view>

#include "text/constraint/grammar.h"

namespace sparrow {

// The rule called root.
Result<NodeId> add_gbnf(Grammar& grammar, std::string_view text);

}  // namespace sparrow
