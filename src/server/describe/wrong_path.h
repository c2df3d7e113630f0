// SPDX-License-Identifier: Apache-2.0
// What to say to a request whose path does not exist.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sparrow {

// "; did you mean /v1/chat/completions?", or why there is no such thing here; empty: nothing is known about
// it.
std::string help_with_path(std::string_view path, std::span<const std::string_view> known);

}  // namespace sparrow
