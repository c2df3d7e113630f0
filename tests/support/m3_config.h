// SPDX-License-Identifier: Apache-2.0
// MiniMax-M3's own configuration, for tests that start from the real sizes.
#pragma once

#include <string>
#include <string_view>

namespace sparrow::test {

// The released config.json, in its nested spelling.
std::string m3_config_json();
std::string m3_mxfp8_config_json();

// The text with `from`, which must occur exactly once, replaced.
std::string replaced(std::string text, std::string_view from, std::string_view to);

}  // namespace sparrow::test
