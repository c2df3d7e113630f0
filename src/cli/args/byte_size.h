// SPDX-License-Identifier: Apache-2.0
// Sizes of memory as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sparrow::cli {

// "4G", "512MiB", "1.5g", "1000000": powers of 1024. `flag` names it in messages.
Result<int64_t> parse_byte_size(std::string_view text, std::string_view flag);

// "1.50 GiB"
std::string byte_string(int64_t bytes);

}  // namespace sparrow::cli
