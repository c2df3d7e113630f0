// SPDX-License-Identifier: Apache-2.0
// Text as Python sees it: code points, case, character classes. All text here is valid UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sparrow::jinja {

// Bytes of the first character of a text that is not empty.
size_t char_bytes(std::string_view text);
char32_t first_char(std::string_view text);
size_t num_chars(std::string_view text);
// The byte at which the character of this index starts; the size of the text past its end.
size_t char_offset(std::string_view text, size_t index);

bool is_space(
    char32_t c);  // str.isspace, which is also what strip and split go by; four more than White_Space
bool is_line_break(char32_t c);
bool is_printable(char32_t c);  // repr leaves these as they are
bool is_cased(char32_t c);
bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_title(char32_t c);
bool is_alpha(char32_t c);
bool is_decimal(char32_t c);
bool is_digit(char32_t c);
bool is_numeric(char32_t c);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_title(std::string_view text);        // str.title
std::string to_capitalized(std::string_view text);  // str.capitalize
std::string to_swapped(std::string_view text);      // str.swapcase

// Strips the characters of `chars`, whitespace where it is null.
std::string_view strip_left(std::string_view text, const std::string_view* chars);
std::string_view strip_right(std::string_view text, const std::string_view* chars);

}  // namespace sparrow::jinja
