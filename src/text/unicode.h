// SPDX-License-Identifier: Apache-2.0
// What pre-tokenizers ask about a character, and Unicode normal forms. Both come from utf8proc's tables.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/utf8.h"

namespace sparrow {

enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

// `text` is valid UTF-8.
std::string normalized(std::string_view text, NormalForm form);

// Unicode's White_Space: what \s means in patterns.
bool is_white_space(uint32_t code_point);
// What \w means: letters, marks, decimal digits, letter numbers, connectors, joiners.
bool is_word_character(uint32_t code_point);
// Columns that a terminal gives it: 0 for marks that join the character before, 2 for wide ones.
int display_width(uint32_t code_point);

// The classes of every code point, looked up by the byte for ASCII and by the code point for the rest.
class CharClasses {
 public:
  // A letter without case (Lm, Lo) and a mark (M) count as either case, as the patterns of o200k have it.
  static constexpr uint8_t kUpper = 1;     // Lu Lt Lm Lo M
  static constexpr uint8_t kLower = 2;     // Ll Lm Lo M
  static constexpr uint8_t kLetter = 4;    // L
  static constexpr uint8_t kNumber = 8;    // N
  static constexpr uint8_t kSpace = 16;    // White_Space
  static constexpr uint8_t kNewline = 32;  // \r \n, also kSpace
  static constexpr uint8_t kWord = kLetter | kNumber;

  CharClasses();

  // Of the character at `p`, which is valid UTF-8 and before the end of its text.
  uint8_t at(const char* p, int& length) const {
    const auto byte = static_cast<unsigned char>(*p);
    if (byte < 0x80) {
      length = 1;
      return ascii_[byte];
    }
    return table_[decode_valid_utf8(p, length)];
  }
  // Zero for bytes that are not ASCII: a loop over one class stops there and asks at().
  uint8_t ascii(char c) const { return ascii_[static_cast<unsigned char>(c)]; }
  uint8_t of(uint32_t code_point) const { return table_[code_point]; }

 private:
  std::array<uint8_t, 256> ascii_{};
  std::unique_ptr<uint8_t[]> table_;  // [0x110000]
};

}  // namespace sparrow
