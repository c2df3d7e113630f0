// SPDX-License-Identifier: Apache-2.0
#include "kv/cuda/copy_blocks.h"

#include "device/cuda/arguments.h"

namespace sparrow {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 4;  // in flight for each thread
constexpr int64_t kPieceBytes = int64_t{kThreads} * kLoads * sizeof(uint4);

// One piece of one page for one copy.
__global__ void __launch_bounds__(kThreads) copy_blocks_kernel(const __grid_constant__ CopyBlocksParams p) {
  const PageLane lane = p.lanes[blockIdx.y];
  const int64_t begin = blockIdx.x * kPieceBytes + threadIdx.x * int64_t{sizeof(uint4)};
  const char* const from = lane.pages + p.from[blockIdx.z] * lane.page_bytes;
  char* const to = lane.pages + p.to[blockIdx.z] * lane.page_bytes;
  uint4 data[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int64_t at = begin + i * int64_t{kThreads} * sizeof(uint4);
    if (at < lane.page_bytes) data[i] = *reinterpret_cast<const uint4*>(from + at);
  }
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int64_t at = begin + i * int64_t{kThreads} * sizeof(uint4);
    if (at < lane.page_bytes) *reinterpret_cast<uint4*>(to + at) = data[i];
  }
}

}  // namespace

cudaError_t launch_copy_blocks(const CopyBlocksParams& p, cudaStream_t stream) {
  if (p.num_copies == 0 || p.num_lanes == 0) return cudaSuccess;
  constexpr int kMaxLanes = 65535;  // of a grid's second dimension
  Arguments("launch_copy_blocks")
      .pointer("lanes", p.lanes, alignof(PageLane))
      .range("num_lanes", p.num_lanes, 1, kMaxLanes)
      .range("num_copies", p.num_copies, 1, kMaxCopiesPerLaunch)
      .range("max_page_bytes", p.max_page_bytes, 1, INT64_MAX)
      .multiple("max_page_bytes", p.max_page_bytes, sizeof(uint4));
  const auto pieces = static_cast<unsigned>((p.max_page_bytes + kPieceBytes - 1) / kPieceBytes);
  const dim3 grid(pieces, static_cast<unsigned>(p.num_lanes), static_cast<unsigned>(p.num_copies));
  copy_blocks_kernel<<<grid, kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace sparrow
