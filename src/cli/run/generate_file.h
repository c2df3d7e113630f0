// SPDX-License-Identifier: Apache-2.0
// The part of `sparrow generate` that runs a file of prompts.
#pragma once

#include "base/result.h"
#include "cli/commands.h"
#include "engine/engine.h"
#include "text/tokenizer/tokenizer.h"

namespace sparrow::cli {

// Whether options.prompts can be read and options.out written: checked before minutes of loading.
Status check_files(const GenerateOptions& options);

// Answers every line of options.prompts, in order, in options.out; at most options.concurrency run at a time.
// A line that fails is answered with its error. The exit code: 1 if there were such lines, else 0; only files
// that cannot be read or written are errors here.
Result<int> generate_file(Engine& engine, const GenerateOptions& options, const Request& defaults,
                          const Tokenizer* tokenizer);

}  // namespace sparrow::cli
