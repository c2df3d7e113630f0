// SPDX-License-Identifier: Apache-2.0
// Base64 as RFC 4648 has it, with padding.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sparrow {

std::string to_base64(std::string_view bytes);
// nullopt: it is none.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace sparrow
