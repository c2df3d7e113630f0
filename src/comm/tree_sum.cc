// SPDX-License-Identifier: Apache-2.0
#include "comm/tree_sum.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace sparrow {
namespace {

constexpr int64_t kBlock = 512;  // floats: the tree's partial sums stay in the first-level cache

void sum_block(std::span<const float* const> parts, int64_t first, int64_t count, float* out) {
  if (parts.size() == 1) {
    std::copy_n(parts[0] + first, count, out);
    return;
  }
  const size_t left = std::bit_floor(parts.size() - 1);
  float right[kBlock];
  sum_block(parts.first(left), first, count, out);
  sum_block(parts.subspan(left), first, count, right);
  for (int64_t i = 0; i < count; ++i) out[i] += right[i];
}

// Calls piece(address in the tensor, length) for each run of the bytes [begin, begin + length).
template <typename F>
void for_each_run(const Tensor& x, int64_t begin, int64_t length, F&& piece) {
  const int64_t size = static_cast<int64_t>(size_of(x.dtype));
  const int64_t row_bytes = x.rows() == 0 ? 0 : byte_size(x) / x.rows();
  const bool gaps = x.row_stride * size != row_bytes;
  while (length > 0) {
    const int64_t row = gaps ? begin / row_bytes : 0;
    const int64_t column = begin - row * row_bytes;
    const int64_t n = gaps ? std::min(length, row_bytes - column) : length;
    piece(static_cast<std::byte*>(x.data) + row * x.row_stride * size + column, n);
    begin += n;
    length -= n;
  }
}

}  // namespace

void tree_sum(std::span<const float* const> parts, int64_t count, float* out) {
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t n = std::min(kBlock, count - first);
    float sum[kBlock];
    sum_block(parts, first, n, sum);
    std::copy_n(sum, n, out + first);
  }
}

int64_t byte_size(const Tensor& x) {
  return x.numel() * static_cast<int64_t>(size_of(x.dtype));
}

void copy_from(const Tensor& x, int64_t begin, std::span<std::byte> out) {
  for_each_run(x, begin, static_cast<int64_t>(out.size()), [&](const std::byte* at, int64_t n) {
    std::memcpy(out.data(), at, static_cast<size_t>(n));
    out = out.subspan(static_cast<size_t>(n));
  });
}

void copy_to(const Tensor& x, int64_t begin, std::span<const std::byte> in) {
  for_each_run(x, begin, static_cast<int64_t>(in.size()), [&](std::byte* at, int64_t n) {
    std::memcpy(at, in.data(), static_cast<size_t>(n));
    in = in.subspan(static_cast<size_t>(n));
  });
}

}  // namespace sparrow
