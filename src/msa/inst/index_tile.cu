// SPDX-License-Identifier: Apache-2.0
#include "msa/sm90/index/index_tile_launch.cuh"

namespace msa::sm90 {
namespace {

template <typename T>
cudaError_t launch_pick(const IndexMergeParams& p, cudaStream_t stream) {
  const dim3 grid((p.batch.total_rows + T::kWarps - 1) / T::kWarps);
  return hopper::launch_dependent(index_pick_kernel<T>, {grid, T::kThreads}, stream, p);
}

}  // namespace

cudaError_t launch_index_schedule(const IndexBatch& batch, const IndexSchedule& schedule,
                                  cudaStream_t stream) {
  return launch_schedule<false>(batch, schedule, {}, stream);
}

cudaError_t launch_index_tile(const IndexTileParams& p, hopper::Element key_type, const CUtensorMap& q,
                              const CUtensorMap& keys, cudaStream_t stream) {
  return launch_tile<false>(p, key_type, q, keys, stream);
}

cudaError_t launch_index_merge(const IndexMergeParams& p, cudaStream_t stream) {
  if (p.scores == nullptr) return launch_merge<false>(p, stream);
  return p.batch.max_blocks <= kDenseBlocks / 2 ? launch_pick<IndexPickTraits<kDenseBlocks / 64>>(p, stream)
                                                : launch_pick<IndexPickTraits<kDenseBlocks / 32>>(p, stream);
}

}  // namespace msa::sm90
