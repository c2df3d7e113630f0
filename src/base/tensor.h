// SPDX-License-Identifier: Apache-2.0
// Tensor: a non-owning view. Whoever made the memory (mapped file, buffer, cache) keeps it alive.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/check.h"
#include "base/dtype.h"

namespace sparrow {

enum class Device : uint8_t { kCpu, kCuda };

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};

// Row-major with an optional stride on the outermost extent; inner extents are contiguous.
struct Tensor {
  static constexpr int kMaxRank = 4;

  // Views of mapped weights are read-only by their pages' protection, not by type.
  void* data = nullptr;
  DType dtype = DType::kF32;
  Device device = Device::kCpu;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  int64_t row_stride = 0;  // elements between two entries of the outermost extent

  Tensor() = default;
  Tensor(void* data, DType dtype, std::initializer_list<int64_t> extents, Device device = Device::kCpu)
      : data(data), dtype(dtype), device(device), rank(static_cast<int>(extents.size())) {
    SPARROW_CHECK_LE(rank, kMaxRank);
    int i = 0;
    for (const int64_t extent : extents) shape[i++] = extent;
    row_stride = rank == 0 ? 0 : 1;
    for (int d = 1; d < rank; ++d) row_stride *= shape[d];
  }

  bool empty() const { return data == nullptr; }
  int64_t rows() const { return shape[0]; }
  int64_t cols() const { return shape[1]; }
  int64_t numel() const {
    int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= shape[d];
    return n;
  }

  template <typename T>
  T* as() const {
    SPARROW_CHECK(dtype == DTypeOf<T>::value);
    return static_cast<T*>(data);
  }
  template <typename T>
  T* row(int64_t r) const {
    return as<T>() + r * row_stride;
  }

  // The same memory without its first `first` rows, `count` rows long.
  Tensor rows_at(int64_t first, int64_t count) const {
    SPARROW_CHECK_LE(first + count, shape[0]);
    Tensor view = *this;
    view.data = static_cast<char*>(data) + first * row_stride * static_cast<int64_t>(size_of(dtype));
    view.shape[0] = count;
    return view;
  }
};

// "[128, 6144]"
std::string shape_string(const Tensor& tensor);

}  // namespace sparrow
