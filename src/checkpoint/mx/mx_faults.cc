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

bool all_finite(MatrixFormat format, std::span<const std::byte> values) {
  if (format == MatrixFormat::kMxfp4) return true;
  // Eight bytes at a time: the lowest bit of the exponent, added to a magnitude, reaches the sign's bit where
  // all bits of the exponent are set, and nowhere else. Of e4m3 only the last magnitude is no number.
  struct Bits {
    uint64_t signs, lowest;
  };
  const auto [signs, lowest] = format == MatrixFormat::kF32    ? Bits{0x8000000080000000, 0x0080000000800000}
                               : format == MatrixFormat::kBF16 ? Bits{0x8000800080008000, 0x0080008000800080}
                                                               : Bits{0x8080808080808080, 0x0101010101010101};
  uint64_t found = 0, eight = 0;
  size_t i = 0;
  for (; i + sizeof eight <= values.size(); i += sizeof eight) {
    std::memcpy(&eight, &values[i], sizeof eight);
    found |= (eight & ~signs) + lowest;
  }
  eight = 0;
  if (i < values.size()) std::memcpy(&eight, &values[i], values.size() - i);
  found |= (eight & ~signs) + lowest;
  return (found & signs) == 0;
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
