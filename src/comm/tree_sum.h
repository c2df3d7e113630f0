// SPDX-License-Identifier: Apache-2.0
// The one order in which ranks are summed, and copies between tensors and plain bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/tensor.h"

namespace sparrow {

// out = the sum of the parts, each `count` long: a binary tree over them, ((0 + 1) + (2 + 3)) + ..., whose
// left branch holds the largest power of two that leaves something for the right one. `out` may be one of the
// parts.
void tree_sum(std::span<const float* const> parts, int64_t count, float* out);

// A tensor's bytes, row after row without the gaps between them.
int64_t byte_size(const Tensor& x);
// Those from `begin` on, as many as the span has, out of the tensor and into it.
void copy_from(const Tensor& x, int64_t begin, std::span<std::byte> out);
void copy_to(const Tensor& x, int64_t begin, std::span<const std::byte> in);

}  // namespace sparrow
