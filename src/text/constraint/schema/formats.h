// SPDX-License-Identifier: Apache-2.0
// Values of `format`, as regular expressions.
#pragma once

#include <optional>
#include <string_view>

namespace sparrow {

// nullopt: a format that is not known. Empty: any text has it.
std::optional<std::string_view> format_pattern(std::string_view format);

}  // namespace sparrow
