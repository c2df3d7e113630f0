// SPDX-License-Identifier: Apache-2.0
// MatrixFormat: how the numbers of a matrix are written down, wherever it lies.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"

namespace sparrow {

enum class MatrixFormat : uint8_t {
  kF32,
  kBF16,
  kMxfp8,  // F8_E4M3 values, one E8M0 scale for 32 of a row's
  kMxfp4,  // E2M1 values, two to a byte, the first in the low half; scales as with MXFP8
};

inline constexpr int64_t kScaleGroup = 32;  // values of a row that share a scale

// Whether its numbers are codes that share scales.
constexpr bool is_mx(MatrixFormat format) {
  return format == MatrixFormat::kMxfp8 || format == MatrixFormat::kMxfp4;
}

constexpr std::string_view name_of(MatrixFormat format) {
  switch (format) {
    case MatrixFormat::kF32:
      return "F32";
    case MatrixFormat::kBF16:
      return "BF16";
    case MatrixFormat::kMxfp8:
      return "MXFP8";
    case MatrixFormat::kMxfp4:
      return "MXFP4";
  }
  return "?";
}

// Of its values as files have them.
constexpr DType dtype_of(MatrixFormat format) {
  switch (format) {
    case MatrixFormat::kF32:
      return DType::kF32;
    case MatrixFormat::kBF16:
      return DType::kBF16;
    case MatrixFormat::kMxfp8:
      return DType::kF8E4M3;
    case MatrixFormat::kMxfp4:
      return DType::kU8;
  }
  return DType::kU8;
}

// Of a matrix whose values have that type: a byte that is no number of its own holds two of E2M1.
constexpr MatrixFormat format_of(DType values) {
  switch (values) {
    case DType::kF32:
    case DType::kI32:
      return MatrixFormat::kF32;
    case DType::kBF16:
      return MatrixFormat::kBF16;
    case DType::kF8E4M3:
      return MatrixFormat::kMxfp8;
    case DType::kU8:
      return MatrixFormat::kMxfp4;
  }
  return MatrixFormat::kF32;
}

// How many values one element of that type holds.
constexpr int64_t values_per_element(MatrixFormat format) {
  return format == MatrixFormat::kMxfp4 ? 2 : 1;
}

// Of `count` values of a row as files have them, without their scales.
constexpr int64_t value_bytes(MatrixFormat format, int64_t count) {
  return count * static_cast<int64_t>(size_of(dtype_of(format))) / values_per_element(format);
}

}  // namespace sparrow
