// SPDX-License-Identifier: Apache-2.0
// `sparrow debug text` on any two streams: the text layer, asked by lines of JSON.
#pragma once

#include <iosfwd>

#include "base/result.h"
#include "cli/commands.h"

namespace sparrow::cli {

// One answer for each line of `in`, in order, written at once. A line that makes no sense gets {"error":
// ...}; only a missing folder or a broken stream is an error here.
Status answer_text_lines(const DebugTextOptions& options, std::istream& in, std::ostream& out);

}  // namespace sparrow::cli
