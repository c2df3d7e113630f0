// SPDX-License-Identifier: Apache-2.0
// The text layer by lines of JSON: what `sparrow debug text` does, for any two streams.
#pragma once

#include <iosfwd>

#include "base/result.h"
#include "cli/commands.h"

namespace sparrow::cli {

// One answer for each line of `in`, in order, written at once. A line that makes no sense is answered with
// {"error": ...}; only a missing folder or a stream that breaks is an error here.
Status answer_text_lines(const DebugTextOptions& options, std::istream& in, std::ostream& out);

}  // namespace sparrow::cli
