// SPDX-License-Identifier: Apache-2.0
// Which call each result is of: clients say it by ids, in any order; the prompt says it by position alone.
#pragma once

#include <vector>

#include "base/json/json.h"
#include "base/result.h"

namespace sparrow {

// The messages as the prompt has them: the results that follow an answer in the order of its calls. A result
// without an id is of the first call that has none yet. Error at a result that is of no call, or of one that
// has its result, and at a call without one, unless no message follows its answer: what ran may still be
// running. Calls of answers in a row count as those of one answer.
Result<std::vector<Json>> in_order_of_calls(const Json& messages);

}  // namespace sparrow
