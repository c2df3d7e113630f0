// SPDX-License-Identifier: Apache-2.0
#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

#include "base/check.h"

namespace sparrow {
namespace {

constexpr uint32_t kCodePoints = 0x110000;

uint8_t classes_of(uint32_t c) {
  const uint8_t space = !is_white_space(c)       ? 0
                        : c == '\r' || c == '\n' ? CharClasses::kSpace | CharClasses::kNewline
                                                 : CharClasses::kSpace;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return CharClasses::kLetter | CharClasses::kUpper;
    case UTF8PROC_CATEGORY_LL:
      return CharClasses::kLetter | CharClasses::kLower;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharClasses::kLetter | CharClasses::kUpper | CharClasses::kLower;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return CharClasses::kUpper | CharClasses::kLower;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClasses::kNumber;
    default:
      return space;
  }
}

}  // namespace

bool is_white_space(uint32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

int display_width(uint32_t c) {
  return utf8proc_charwidth(static_cast<utf8proc_int32_t>(c));
}

bool is_word_character(uint32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200C || c == 0x200D;
  }
}

CharClasses::CharClasses() : table_(std::make_unique<uint8_t[]>(kCodePoints)) {
  for (uint32_t c = 0; c < kCodePoints; ++c) table_[c] = classes_of(c);
  std::copy_n(table_.get(), 0x80, ascii_.begin());
}

std::string normalized(std::string_view text, NormalForm form) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; }))
    return std::string(text);
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const int options = UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                      (compatible ? UTF8PROC_COMPAT : 0);
  utf8proc_uint8_t* raw = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &raw, static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(raw, &std::free);
  SPARROW_CHECK(size >= 0);  // valid UTF-8 always has its normal forms
  return std::string(reinterpret_cast<const char*>(raw), static_cast<size_t>(size));
}

}  // namespace sparrow
