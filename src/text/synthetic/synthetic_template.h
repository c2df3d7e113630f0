// SPDX-License-Identifier: Apache-2.0
// The chat template of synthetic models: M3's format and markers, our own words.
#pragma once

#include <string_view>

namespace sparrow {

std::string_view synthetic_chat_template();

}  // namespace sparrow
