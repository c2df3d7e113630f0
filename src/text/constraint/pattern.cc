// SPDX-License-Identifier: Apache-2.0
#include "text/constraint/pattern.h"

#include <utility>

#include "text/constraint/regex/regex.h"

namespace sparrow {

Result<Pattern> Pattern::create(std::string_view pattern, bool search) {
  auto grammar = std::make_shared<Grammar>();
  const NodeId node = SPARROW_TRY(add_regex(*grammar, pattern, {.search = search}));
  SPARROW_TRY(grammar->finish(node));
  auto made = Automaton::create(grammar);
  return Pattern(made.ok() ? std::move(*made) : nullptr);
}

bool Pattern::matches(std::string_view text) {
  if (!automaton_) return false;
  StateId state = automaton_->start();
  for (const char byte : text) state = automaton_->next(state, static_cast<uint8_t>(byte));
  return automaton_->accepts(state);
}

}  // namespace sparrow
