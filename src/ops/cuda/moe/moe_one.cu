// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/arguments.h"
#include "ops/cuda/moe/families.h"
#include "ops/cuda/moe/few/experts_few.cuh"
#include "ops/cuda/moe/launch.cuh"
#include "ops/cuda/moe/launch_few.h"
#include "sm90/launch.cuh"

namespace sparrow::ops::cuda {

bool moe_one_launch_pays(const MoeShape& shape, const MoeArgs& args) {
  // Where one launch must cut the second product's rows, two are faster: 133 against 173 us for one row of
  // 3,072 channels, 62 against 81 for two of 768.
  return args.rows <= kMoeOneLaunchRows && shape.inter <= ExpertsFew::kMaxDepth &&
         !is_mx(args.gate_up.format) && !is_mx(args.down.format);
}

void moe_one_launch(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream) {
  using T = ExpertsFew;
  Arguments("moe_one_launch").range("rows", args.rows, 1, T::kTokens);
  const DeviceMatrix& w = args.gate_up;
  ExpertsFewParams p{.gate_up = line_map(w.bf16(), w.rows, w.cols, T::kRows, T::kDepth / 64),
                     .down = args.down.bf16(),
                     .x = args.x,
                     .ids = args.ids,
                     .weights = args.weights,
                     .h = hidden_rows(args),
                     .out = args.out,
                     .barrier = static_cast<uint32_t*>(args.workspace),
                     .rows = args.rows,
                     .hidden = shape.hidden,
                     .inter = shape.inter,
                     .num_experts = shape.num_experts,
                     .top_k = shape.top_k,
                     .alpha = args.alpha,
                     .limit = args.limit,
                     .beta = args.beta,
                     .scaling = args.scaling};
  constexpr int kSmemBytes = hopper::smem_share(T::kCtasPerSm);
  const int slots = num_sms() * resident_ctas(experts_few_kernel, T::kThreads, kSmemBytes);
  p.depth = down_depth(shape.inter, T::kMaxDepth);
  p.slab = round_up((shape.hidden + slots - 1) / slots, 8);
  p.holds = p.depth == shape.inter;
  p.ring_offset = T::kHeldOffset + (p.holds ? (p.slab + args.rows) * p.depth * 2 : 0);
  p.ring_bytes = kSmemBytes - p.ring_offset;
  // As many units as the rows allow at most; the device counts the real ones.
  const int units = (args.rows * shape.top_k + 1) * (2 * shape.inter / T::kRows);
  const int slabs = (shape.hidden + p.slab - 1) / p.slab;
  SPARROW_CUDA(hopper::launch_dependent(
      experts_few_kernel, {dim3(std::min(slots, std::max(units, slabs))), T::kThreads, kSmemBytes}, stream,
      p));
}

}  // namespace sparrow::ops::cuda
