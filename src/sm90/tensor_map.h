// SPDX-License-Identifier: Apache-2.0
// Tensor maps: how the copy engine sees a matrix or tensor in device memory. Host only; nothing is read from
// the device.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace hopper {

enum class Element : uint8_t { kBF16, kE4M3, kU64 };

inline constexpr int element_bytes(Element e) {
  return e == Element::kU64 ? 8 : e == Element::kBF16 ? 2 : 1;
}

// A row-major matrix cut into boxes. With the 128-byte swizzle a box row is at most 128 bytes; in shared
// memory chunk c (16 bytes) of row r then lies at 128 r + 16 (c ^ (r % 8)) from a 1024-byte aligned base.
// Reads past the last row give zeros.
struct MatrixView {
  const void* data = nullptr;  // 16-byte aligned
  Element element = Element::kBF16;
  int64_t rows = 0;
  int columns = 0;
  int64_t row_bytes = 0;  // 0: rows are contiguous
  int box_rows = 0;       // <= 256
  int box_columns = 0;    // 128 bytes wide at most
  bool swizzle = true;
};

cudaError_t make_tensor_map(const MatrixView& view, CUtensorMap* map);

// A tensor of up to five dimensions, the innermost first.
struct TensorView {
  const void* data = nullptr;  // 16-byte aligned
  Element element = Element::kBF16;
  int rank = 0;
  cuuint64_t extents[5] = {};
  cuuint64_t strides[4] = {};  // bytes, of all dimensions but the first
  cuuint32_t box[5] = {};
  bool swizzle = true;
};

cudaError_t make_tensor_map(const TensorView& view, CUtensorMap* map);

}  // namespace hopper
