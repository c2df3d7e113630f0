// SPDX-License-Identifier: Apache-2.0
// The operations of vision_ops.h on the CPU, over the kernels of one instruction set.
#pragma once

#include "ops/cpu/ops_cpu.h"
#include "ops/vision_ops.h"

namespace sparrow::ops::cpu {

void layer_norm(Exec& exec, const Kernels& kernels, const Tensor& x, const LayerNorm& norm,
                const Tensor& out);
void add_layer_norm(Exec& exec, const Kernels& kernels, const Tensor& residual, const Tensor& delta,
                    const LayerNorm& norm, const Tensor& out);
void rope(Exec& exec, const Kernels& kernels, const Tensor& x, int head_dim, const Rotary& rotary);
void attend_segments(Exec& exec, const Kernels& kernels, const SegmentAttention& attention);
int64_t segment_scratch_bytes(const Kernels& kernels, const SegmentScratchQuery& query);

}  // namespace sparrow::ops::cpu
