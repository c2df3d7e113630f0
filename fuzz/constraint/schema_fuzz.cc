// SPDX-License-Identifier: Apache-2.0
// Any bytes as a JSON schema, for answers and for arguments of calls.
#include <cstdint>
#include <string_view>

#include "constraint/constraint_walk.h"
#include "text/constraint/schema/json_schema.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparrow;
  if (size < 1) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto document = JsonDocument::parse(text, "schema");
  if (!document.ok()) return 0;
  auto grammar = std::make_shared<Grammar>();
  const auto root = add_schema(*grammar, document.value().root(),
                               data[0] % 4 == 0 ? ValueStyle::kToolCall : ValueStyle::kJson);
  if (root.ok() && grammar->finish(root.value()).ok()) follow(std::move(grammar), data[0]);
  return 0;
}
