// SPDX-License-Identifier: Apache-2.0
// Pattern: a regular expression that whole texts are held against. Not for two threads at the same time.
#pragma once

#include <memory>
#include <string_view>

#include "base/result.h"
#include "text/constraint/automaton.h"

namespace sparrow {

class Pattern {
 public:
  // `search`: it may lie anywhere in a text, unless it is anchored. Error: it cannot be read.
  static Result<Pattern> create(std::string_view pattern, bool search);

  bool matches(std::string_view text);

 private:
  explicit Pattern(std::unique_ptr<Automaton> automaton) : automaton_(std::move(automaton)) {}
  std::unique_ptr<Automaton> automaton_;  // none: no text at all matches
};

}  // namespace sparrow
