// SPDX-License-Identifier: Apache-2.0
// JSON Schema (2020-12) -> grammar of the values that fit it. Every keyword is held to, or refused by its
// name and place. Members come in the order of `properties`; white space is bounded. Schemas are not trusted.
#pragma once

#include <string_view>

#include "base/json/json.h"
#include "base/result.h"
#include "text/constraint/grammar.h"

namespace sparrow {

// How a value is written.
enum class ValueStyle {
  kJson,
  kToolCall,  // as M3 writes arguments: elements behind the marker (kMarkerByte), strings as they are
};

// A value that fits the schema. `root` is where references look; messages call it #.
Result<NodeId> add_schema(Grammar& grammar, const Json& root, ValueStyle style = ValueStyle::kJson);
// Any JSON object.
NodeId add_json_object(Grammar& grammar);
// Elements as M3 writes arguments, of any names and with anything in them.
NodeId add_elements(Grammar& grammar);
// Any text that does not hold `phrase`, which is ASCII.
NodeId add_text_without(Grammar& grammar, std::string_view phrase);

}  // namespace sparrow
