// SPDX-License-Identifier: Apache-2.0
// What may be wrong with the bytes of a matrix, above all of a quantised one, in the words in which users
// read it, wherever it shows: when a checkpoint is opened, or on the way to a GPU.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/matrix_format.h"
#include "base/result.h"

namespace sparrow {

// A code that is no number. Rows and columns are those of the tensor's matrix.
Error bad_code(std::string_view tensor, int64_t row, int64_t column, uint8_t code);
// A scale that is no number, or one larger than `max`. A column of scales belongs to 32 of the matrix.
Error bad_scale(std::string_view tensor, int64_t row, int64_t column, uint8_t scale, int max);

// The scale up to which every code gives a finite bf16.
constexpr int max_finite_scale(MatrixFormat format) {
  return format == MatrixFormat::kMxfp8 ? 246 : 252;
}

// Whether none of these is a NaN or an infinity (e2m1 has neither). Runs at the speed of memory.
bool all_finite(MatrixFormat format, std::span<const std::byte> values);
// Whether some byte is a NaN of e4m3.
inline bool has_nan_code(std::span<const std::byte> codes) {
  return !all_finite(MatrixFormat::kMxfp8, codes);
}

// The first code that is a NaN (e2m1 has none), and the first scale above `max`, each as an error that names
// its place. `columns` are those of the bytes: of codes, or of scales.
Status check_codes(std::string_view tensor, std::span<const std::byte> codes, int64_t columns);
Status check_scales(std::string_view tensor, std::span<const std::byte> scales, int64_t columns, int max);

}  // namespace sparrow
