// SPDX-License-Identifier: Apache-2.0
// Numbers as models write them -> JSON numbers, digit by digit: no value ever passes through a double, so
// none is rounded.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sparrow {

// The text as a JSON integer of any length: leading zeros and a plus sign go, 5.0 and 1e3 become 5 and 1000.
// nullopt for anything else, among it true fractions.
std::optional<std::string> json_integer(std::string_view text);

// The text as a JSON number, spelt as it was written wherever JSON allows that. nullopt for anything else,
// among it values that overflow a double.
std::optional<std::string> json_number(std::string_view text);

}  // namespace sparrow
