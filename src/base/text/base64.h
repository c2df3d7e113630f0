// SPDX-License-Identifier: Apache-2.0
// Base64 as RFC 4648 has it: its alphabet, padding, no spaces, no bits left over. Nothing else has one
// meaning only.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sparrow {

std::string to_base64(std::string_view bytes);
// Measured before it is decoded.
Result<std::vector<std::byte>> decode_base64(std::string_view text, size_t max_bytes);

}  // namespace sparrow
