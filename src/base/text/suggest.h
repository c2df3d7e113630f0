// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the known word nearest to a wrong one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sparrow {

// Empty where no word is near enough to be what was meant.
std::string nearest_word(std::string_view wrong, std::span<const std::string> known);

}  // namespace sparrow
