// SPDX-License-Identifier: Apache-2.0
// Sizes of memory, and numbers of tokens, as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sparrow::cli {

// "4G", "512MiB", "1.5g", "1000000": powers of 1024. `flag` names it in messages.
Result<int64_t> parse_byte_size(std::string_view text, std::string_view flag);

// "65536", "64k" (thousands), "64K" (of 1024), "1m", "25.6k": as vLLM reads them.
Result<int64_t> parse_count(std::string_view text, std::string_view flag);

// "1.50 GiB"
std::string byte_string(int64_t bytes);

}  // namespace sparrow::cli
