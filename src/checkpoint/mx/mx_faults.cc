// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/mx/mx_faults.h"

#include <algorithm>
#include <cstring>

#include "base/strf.h"

namespace sparrow {
namespace {

bool is_nan_code(std::byte code) {
  return (code & std::byte{0x7f}) == std::byte{0x7f};
}

}  // namespace

Error bad_code(std::string_view tensor, int64_t row, int64_t column, uint8_t code) {
  return {Errc::kCorrupt,
          strf("tensor {}: row {}, column {} is {:#04x}, which means NaN", tensor, row, column, code)};
}

Error bad_scale(std::string_view tensor, int64_t row, int64_t column, uint8_t scale, int max) {
  const std::string what = scale == kE8M0NaN
                               ? std::string("which means NaN")
                               : strf("2^{}; the largest that is supported is {}", int{scale} - 127, max);
  return {Errc::kCorrupt, strf("tensor {}: row {}, column {} is {}, {}", tensor, row, column, scale, what)};
}

bool has_nan_code(std::span<const std::byte> codes) {
  // Eight at a time: adding 1 to a magnitude of 0x7f, and to no other, reaches the sign's bit.
  constexpr uint64_t kMagnitudes = 0x7f7f7f7f7f7f7f7f, kOnes = 0x0101010101010101;
  uint64_t found = 0;
  size_t i = 0;
  for (; i + sizeof(uint64_t) <= codes.size(); i += sizeof(uint64_t)) {
    uint64_t eight;
    std::memcpy(&eight, &codes[i], sizeof eight);
    found |= (eight & kMagnitudes) + kOnes;
  }
  return (found & ~kMagnitudes) != 0 ||
         std::any_of(codes.begin() + static_cast<std::ptrdiff_t>(i), codes.end(), is_nan_code);
}

Status check_codes(std::string_view tensor, std::span<const std::byte> codes, int64_t columns) {
  if (!has_nan_code(codes)) return Ok{};
  const auto nan = std::find_if(codes.begin(), codes.end(), is_nan_code);
  const int64_t at = nan - codes.begin();
  return bad_code(tensor, at / columns, at % columns, static_cast<uint8_t>(*nan));
}

Status check_scales(std::string_view tensor, std::span<const std::byte> scales, int64_t columns, int max) {
  const auto bad = std::find_if(scales.begin(), scales.end(),
                                [&](std::byte scale) { return static_cast<int>(scale) > max; });
  if (bad == scales.end()) return Ok{};
  const int64_t at = bad - scales.begin();
  return bad_scale(tensor, at / columns, at % columns, static_cast<uint8_t>(*bad), max);
}

}  // namespace sparrow
