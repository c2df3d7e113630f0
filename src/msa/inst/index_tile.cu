// SPDX-License-Identifier: Apache-2.0
#include "msa/sm90/index/index_merge.cuh"
#include "msa/sm90/index/index_tile.cuh"
#include "sm90/launch.cuh"
#include "sm90/tensor_map.h"

namespace msa::sm90 {
namespace {

template <typename T>
cudaError_t launch(const IndexTileParams& p, const CUtensorMap& q, const CUtensorMap& keys,
                   cudaStream_t stream) {
  return hopper::launch_dependent(index_tile_kernel<T>, {dim3(p.schedule.ctas), T::kThreads, T::kSmemBytes},
                                  stream, p, q, keys);
}

template <bool kDense, hopper::Element kKeyType>
cudaError_t launch_rows(const IndexTileParams& p, const CUtensorMap& q, const CUtensorMap& keys,
                        cudaStream_t stream) {
  using Small = IndexTileTraits<1, kDense, kKeyType>;
  using Large = IndexTileTraits<2, kDense, kKeyType>;
  return p.schedule.tile_rows == Small::kRows ? launch<Small>(p, q, keys, stream)
                                              : launch<Large>(p, q, keys, stream);
}

template <hopper::Element kKeyType>
cudaError_t launch_keys(const IndexTileParams& p, const CUtensorMap& q, const CUtensorMap& keys,
                        cudaStream_t stream) {
  return p.scores != nullptr ? launch_rows<true, kKeyType>(p, q, keys, stream)
                             : launch_rows<false, kKeyType>(p, q, keys, stream);
}

template <typename T>
cudaError_t launch_pick(const IndexMergeParams& p, cudaStream_t stream) {
  const dim3 grid((p.batch.total_rows + T::kWarps - 1) / T::kWarps);
  return hopper::launch_dependent(index_pick_kernel<T>, {grid, T::kThreads}, stream, p);
}

}  // namespace

cudaError_t launch_index_schedule(const IndexBatch& batch, const IndexSchedule& schedule,
                                  cudaStream_t stream) {
  return hopper::launch_dependent(index_schedule_kernel, {dim3(1), IndexScheduleTraits::kThreads}, stream,
                                  batch, schedule);
}

cudaError_t launch_index_tile(const IndexTileParams& p, hopper::Element key_type, const CUtensorMap& q,
                              const CUtensorMap& keys, cudaStream_t stream) {
  return key_type == hopper::Element::kBF16 ? launch_keys<hopper::Element::kBF16>(p, q, keys, stream)
                                            : launch_keys<hopper::Element::kE4M3>(p, q, keys, stream);
}

cudaError_t launch_index_merge(const IndexMergeParams& p, cudaStream_t stream) {
  if (p.scores != nullptr)
    return p.batch.max_blocks <= kDenseBlocks / 2
               ? launch_pick<IndexPickTraits<kDenseBlocks / 64>>(p, stream)
               : launch_pick<IndexPickTraits<kDenseBlocks / 32>>(p, stream);
  // A row has about ctas / tiles + 1 pieces in each window; many pieces deserve a whole CTA.
  constexpr int kManyPieces = 12;
  if (p.schedule.ctas / p.schedule.tile_cap >= kManyPieces)
    return hopper::launch_dependent(index_merge_kernel<IndexMergeTraits<8>>,
                                    {dim3(p.batch.total_rows), IndexMergeTraits<8>::kThreads}, stream, p);
  const int ctas = (p.batch.total_rows + IndexMergeTraits<1>::kRows - 1) / IndexMergeTraits<1>::kRows;
  return hopper::launch_dependent(index_merge_kernel<IndexMergeTraits<1>>,
                                  {dim3(ctas), IndexMergeTraits<1>::kThreads}, stream, p);
}

}  // namespace msa::sm90
