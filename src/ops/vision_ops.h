// SPDX-License-Identifier: Apache-2.0
// The operations that only the vision tower has. As in ops.h: sums in f32, one rounding at the store, and a
// row's result never depends on the other rows of the call; in attention, on those of other segments.
#pragma once

#include <cstdint>
#include <span>

#include "base/tensor.h"
#include "device/exec.h"
#include "ops/ops.h"

namespace sparrow::ops {

// A LayerNorm's weight (of any type) and bias (f32).
struct LayerNorm {
  Tensor weight, bias;
  float eps = 1e-5f;
};

// out = (x - mean) * rsqrt(variance + eps) * weight + bias of each row.
void layer_norm(Exec& exec, const Tensor& x, const LayerNorm& norm, const Tensor& out);

// residual = residual + delta, rounded to its type, and then out = layer_norm(residual).
void add_layer_norm(Exec& exec, const Tensor& residual, const Tensor& delta, const LayerNorm& norm,
                    const Tensor& out);

// Partial rotary of the heads of x [rows, heads * head_dim], in place: channel i of a head pairs with i +
// rotary_dim / 2.
void rope(Exec& exec, const Tensor& x, int head_dim, const Rotary& rotary);

// Attention without a mask among the rows of each segment. q, k, v and out are [rows, heads * head_dim] of
// one type; a head has at most 128 channels.
struct SegmentAttention {
  Tensor q, k, v, out;
  int heads = 0;
  float scale = 1.0f;
  std::span<const int64_t> begins;  // [segments + 1] first row of each segment, and the end
};
void attend_segments(Exec& exec, const SegmentAttention& attention);

// The most scratch memory that attend_segments() takes for so many rows, none of whose segments is longer.
struct SegmentScratchQuery {
  CpuIsa isa;
  int threads;
  DType type;
  int64_t rows, longest;
  int64_t width;  // heads * head_dim
};
int64_t segment_scratch_bytes(const SegmentScratchQuery& query);

}  // namespace sparrow::ops
