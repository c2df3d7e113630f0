// SPDX-License-Identifier: Apache-2.0
// Token ids and positions as people give them on a command line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sparrow::cli {

// "1,2,3" (blanks allowed). `what` names the flag in errors.
Result<std::vector<int32_t>> parse_int_list(std::string_view text, std::string_view what);

// A JSON array of integers.
Result<std::vector<int32_t>> read_id_file(const std::filesystem::path& path);

// A list as above, or else the path of a file with a JSON array.
Result<std::vector<int32_t>> read_prompt_ids(std::string_view list_or_file);

// Error: no ids, one outside the vocabulary, or more tokens than the model has positions.
Status check_prompt(std::span<const int32_t> ids, int vocab_size, int64_t max_new_tokens,
                    int64_t max_positions);

}  // namespace sparrow::cli
