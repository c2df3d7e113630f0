// SPDX-License-Identifier: Apache-2.0
// Every operation in plain scalar code, as its definition reads: one thread, sums in double, no blocking. It
// judges the fast kernels and shares nothing with them; it also runs on machines that have none of their
// instructions.
#pragma once

#include "ops/ops.h"
#include "ops/vision_ops.h"

namespace sparrow::ops::reference {

void linear(const Tensor& x, std::span<const Projection> projections, int parts = 1);
void embed(std::span<const int32_t> ids, const Tensor& table, const Tensor& out);
void rms_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out);
void add_rms_norm(const Tensor& residual, const Tensor& delta, const Tensor& weight, float eps,
                  const Tensor& out);
void add(const Tensor& residual, const Tensor& delta);
void convert(const Tensor& x, const Tensor& out);
void head_norm_rope(const Tensor& x, const Tensor& norm_weight, float eps, const Rotary& rotary);
void mlp(const Tensor& x, const MlpWeights& weights, const SwigluParams& swiglu, const Tensor& out,
         int parts = 1);
void route(const Tensor& x, const Weight& gate, const Tensor& bias, int top_k, const Tensor& ids,
           const Tensor& weights);
void moe(const Tensor& x, const Tensor& ids, const Tensor& weights, std::span<const MlpWeights> experts,
         const MlpWeights& shared, float scaling, const SwigluParams& swiglu, const Tensor& out,
         int parts = 1);

void layer_norm(const Tensor& x, const LayerNorm& norm, const Tensor& out);
void add_layer_norm(const Tensor& residual, const Tensor& delta, const LayerNorm& norm, const Tensor& out);
void rope(const Tensor& x, int head_dim, const Rotary& rotary);
void attend_segments(const SegmentAttention& attention);

// One element of any floating type, by flat offset from the tensor's start.
float load(const Tensor& tensor, int64_t offset);
void store(const Tensor& tensor, int64_t offset, float value);
// An element of a weight matrix, scale applied.
float weight_at(const Weight& weight, int64_t out, int64_t in);

}  // namespace sparrow::ops::reference
