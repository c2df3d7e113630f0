// SPDX-License-Identifier: Apache-2.0
// Which tile, how many CTAs and how many of them to a unit: the plan of a streamed product.
#pragma once

#include <algorithm>

#include "ops/cuda/moe/launch.cuh"
#include "ops/cuda/moe/stream.cuh"
#include "ops/cuda/moe/stream_cells.cuh"
#include "sm90/launch.cuh"

namespace sparrow::ops::cuda {

// What a product reads; launch_stream makes the maps for its tile.
struct StreamMatrices {
  const __nv_bfloat16 *w = nullptr, *x = nullptr;  // [experts, out_rows, columns], [rows, columns]
  int experts = 1;
};

// CTAs that share a unit's columns. Clusters stay inside a group of 16 or so SMs: more than three quarters of
// the slots would not all fit at once.
inline int stream_splits(int units, int slots, int chunks) {
  constexpr int kMaxCluster = 8;
  int splits = 1;
  while (splits < kMaxCluster && splits * 2 <= chunks && units * splits * 2 <= slots * 3 / 4) splits *= 2;
  return splits;
}

template <typename T>
void launch_stream(const StreamMatrices& m, StreamParams p, int max_units, cudaStream_t stream) {
  const int slots = num_sms() * T::kCtasPerSm;
  const int chunks = (p.columns + T::kDepth - 1) / T::kDepth;
  p.splits = 1;
  if constexpr (!T::kRouted) {
    p.splits = stream_splits(max_units, slots, chunks);
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

template <typename T>
void launch_cell_stream(const DeviceMatrix& w, const __nv_bfloat16* x, const StreamParams& params,
                        int max_units, cudaStream_t stream) {
  const int slots = num_sms() * T::kCtasPerSm;
  CellStreamParams p{params};
  p.cells = w.cells(), p.x = x;
  p.splits = 1;
  if constexpr (!T::kRouted) {
    p.splits = stream_splits(max_units, slots, (p.columns + T::kDepth - 1) / T::kDepth);
    p.token_rows = (p.rows + 7) / 8 * 8;
    p.tokens = line_map(x, p.rows, p.columns, p.token_rows, T::kCells, true);
  }
  constexpr int kSmemBytes = hopper::smem_share(T::kCtasPerSm);
  static_assert(T::kMaxPieceBytes <= kSmemBytes - T::kRingOffset, "the ring must hold any piece");
  p.ring_bytes = kSmemBytes - T::kRingOffset;
  const int grid = std::min(max_units, slots / p.splits) * p.splits;
  SPARROW_CUDA(hopper::launch_dependent(
      cell_stream_kernel<T>,
      {.grid = dim3(grid), .threads = T::kThreads, .smem_bytes = kSmemBytes, .cluster = p.splits}, stream,
      p));
}

// All rows times one matrix. More rows want taller tiles: x comes from the L2 once for every tile.
template <MatrixFormat kFormat, StreamJob kJob>
void launch_cell_stream_rows(const DeviceMatrix& w, const __nv_bfloat16* x, const StreamParams& p,
                             cudaStream_t stream) {
  const auto run = [&]<typename T>() {
    launch_cell_stream<T>(w, x, p, (p.out_rows + T::kRows - 1) / T::kRows, stream);
  };
  if (p.rows <= 8)
    run.template operator()<CellStreamTraits<kFormat, kJob, 8, 2, 1, 8, 8, 2>>();
  else if (p.rows <= 16)
    run.template operator()<CellStreamTraits<kFormat, kJob, 16, 2, 1, 8, 8, 2>>();
  else if (p.rows <= 32)
    run.template operator()<CellStreamTraits<kFormat, kJob, 32, 2, 2, 4, 8, 1>>();
  else
    run.template operator()<CellStreamTraits<kFormat, kJob, 64, 1, 4, 4, 4, 1>>();
}

template <StreamJob kJob>
void launch_stream_rows(const DeviceMatrix& w, const __nv_bfloat16* x, const StreamParams& p,
                        cudaStream_t stream) {
  if constexpr (kJob != StreamJob::kLinearF32) {  // what has f32 results is never quantised
    if (w.format == MatrixFormat::kMxfp8)
      return launch_cell_stream_rows<MatrixFormat::kMxfp8, kJob>(w, x, p, stream);
    if (w.format == MatrixFormat::kMxfp4)
      return launch_cell_stream_rows<MatrixFormat::kMxfp4, kJob>(w, x, p, stream);
  }
  const auto run = [&]<typename T>() {
    launch_stream<T>({w.bf16(), x}, p, (p.out_rows + T::kRows - 1) / T::kRows, stream);
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
