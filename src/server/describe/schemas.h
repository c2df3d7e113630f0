// SPDX-License-Identifier: Apache-2.0
// The parts of /openapi.json that are no tables: messages, tools and answers, as JSON Schema.
#pragma once

#include <span>
#include <string_view>

namespace sparrow {

struct NamedSchema {
  std::string_view name, schema;
};

std::span<const NamedSchema> fixed_schemas();

}  // namespace sparrow
