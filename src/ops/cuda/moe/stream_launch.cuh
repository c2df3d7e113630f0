// SPDX-License-Identifier: Apache-2.0
// Which tile, how many CTAs and how many of them to a unit: the plan of a streamed product.
#pragma once

#include <algorithm>

#include "ops/cuda/moe/launch.cuh"
#include "ops/cuda/moe/stream.cuh"
#include "sm90/launch.cuh"

namespace sparrow::ops::cuda {

// What a product reads; launch_stream makes the maps for its tile.
struct StreamMatrices {
  const __nv_bfloat16 *w = nullptr, *x = nullptr;  // [experts, out_rows, columns], [rows, columns]
  int experts = 1;
};

template <typename T>
void launch_stream(const StreamMatrices& m, StreamParams p, int max_units, cudaStream_t stream) {
  const int slots = num_sms() * T::kCtasPerSm;
  const int chunks = (p.columns + T::kDepth - 1) / T::kDepth;
  constexpr int kMaxCluster = 8;
  p.splits = 1;
  if constexpr (!T::kRouted) {
    // Clusters stay inside a group of 16 or so SMs: more than three quarters of the slots would not all fit
    // at once.
    while (p.splits < kMaxCluster && p.splits * 2 <= chunks && max_units * p.splits * 2 <= slots * 3 / 4)
      p.splits *= 2;
    p.tokens = line_map(m.x, p.rows, p.columns, T::kTokens, T::kDepth / 64);
  }
  p.w = line_map(m.w, int64_t{m.experts} * p.out_rows, p.columns, T::kRows, T::kDepth / 64);
  p.x = m.x;
  p.stages = std::min((hopper::smem_share(T::kCtasPerSm) - T::kRingOffset) / T::kStageBytes, T::kMaxStages);
  const int grid = std::min(max_units, slots / p.splits) * p.splits;
  SPARROW_CUDA(hopper::launch_dependent(stream_kernel<T>,
                                        {.grid = dim3(grid),
                                         .threads = T::kThreads,
                                         .smem_bytes = T::smem_bytes(p.stages),
                                         .cluster = p.splits},
                                        stream, p));
}

// All rows times one matrix. More rows want taller tiles: x comes from the L2 once for every tile.
template <StreamJob kJob>
void launch_stream_rows(const StreamMatrices& m, const StreamParams& p, cudaStream_t stream) {
  const auto run = [&]<typename T>() {
    launch_stream<T>(m, p, (p.out_rows + T::kRows - 1) / T::kRows, stream);
  };
  if (p.rows <= 8)
    run.template operator()<StreamTraits<kJob, 8, 2, 4, 256, 2>>();
  else if (p.rows <= 16)
    run.template operator()<StreamTraits<kJob, 16, 2, 4, 256, 2>>();
  else if (p.rows <= 32)
    run.template operator()<StreamTraits<kJob, 32, 4, 4, 256, 1>>();
  else
    run.template operator()<StreamTraits<kJob, 64, 4, 2, 128, 1>>();
}

}  // namespace sparrow::ops::cuda
