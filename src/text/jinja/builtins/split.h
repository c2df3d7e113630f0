// SPDX-License-Identifier: Apache-2.0
// The pieces of a text between blanks or separators, cut at most `limit` times (no limit if negative), from
// the left or from the right. The pieces are borrowed from the text.
#pragma once

#include <string_view>
#include <vector>

#include "text/jinja/value/value.h"

namespace sparrow::jinja {

std::vector<Value> split_blanks(std::string_view text, int64_t limit);
std::vector<Value> rsplit_blanks(std::string_view text, int64_t limit);
// `sep` is not empty.
std::vector<Value> split_at(std::string_view text, std::string_view sep, int64_t limit);
std::vector<Value> rsplit_at(std::string_view text, std::string_view sep, int64_t limit);

}  // namespace sparrow::jinja
