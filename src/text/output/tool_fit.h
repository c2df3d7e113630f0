// SPDX-License-Identifier: Apache-2.0
// Whether what a model wrote is a value of a schema: what decides between alternatives. As far as it is cheap
// to see: what cannot be seen fits.
#pragma once

#include <optional>
#include <string_view>

#include "text/output/tool_schema.h"
#include "text/output/tool_value.h"

namespace sparrow {

// A list's elements as M3 writes them.
inline constexpr std::string_view kItem = "item";

// Spelt as JSON spells it, within bounds, with all members that must be there, ...
bool fits(const SchemaAlternative& alternative, const ToolElement& written);
// The same, but only those members are looked at that have an enum or const: {"kind": {"const": "a"}, ...}.
bool fits_listed_members(const Schema& object, const ToolElement& written);
// That of the values in enum and const which was written.
std::optional<Json> listed_value(const Schema& schema, const ToolElement& written);

}  // namespace sparrow
