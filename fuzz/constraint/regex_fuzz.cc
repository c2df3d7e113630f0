// SPDX-License-Identifier: Apache-2.0
// Any bytes as a regular expression, of a text or of a JSON string, anchored or searched for.
#include <cstdint>
#include <string_view>

#include "constraint/constraint_walk.h"
#include "text/constraint/regex/regex.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparrow;
  if (size < 1) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  auto grammar = std::make_shared<Grammar>();
  const auto root =
      add_regex(*grammar, text,
                {.spelling = data[0] & 1 ? Spelling::kJson : Spelling::kRaw, .search = (data[0] & 2) != 0});
  if (root.ok() && grammar->finish(root.value()).ok()) follow(std::move(grammar), data[0]);
  return 0;
}
