// SPDX-License-Identifier: Apache-2.0
// Any bytes as a grammar.
#include <cstdint>
#include <string_view>

#include "constraint/constraint_walk.h"
#include "text/constraint/gbnf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparrow;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto grammar = std::make_shared<Grammar>();
  const auto root = add_gbnf(*grammar, text);
  if (root.ok() && grammar->finish(root.value()).ok()) follow(std::move(grammar), size);
  return 0;
}
