// SPDX-License-Identifier: Apache-2.0
// JSON of a writer that may have named a member twice, for readers that would otherwise each take another
// one.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sparrow {

// The same with only the last member of each name. nullopt: it is no JSON.
std::optional<std::string> with_last_of_equal_keys(std::string_view text);

}  // namespace sparrow
