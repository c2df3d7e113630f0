// SPDX-License-Identifier: Apache-2.0
// Which instantiation of the tile kernel and of its merge serves a step, of a whole cache or of a share.
#pragma once

#include "msa/sm90/index/index_merge.cuh"
#include "msa/sm90/index/index_tile.cuh"
#include "sm90/launch.cuh"
#include "sm90/tensor_map.h"

namespace msa::sm90 {

template <typename T>
cudaError_t launch_tile(const IndexTileParams& p, const CUtensorMap& q, const CUtensorMap& keys,
                        cudaStream_t stream) {
  return hopper::launch_dependent(index_tile_kernel<T>, {dim3(p.schedule.ctas), T::kThreads, T::kSmemBytes},
                                  stream, p, q, keys);
}

template <bool kDense, hopper::Element kKeyType, bool kShare>
cudaError_t launch_tile_rows(const IndexTileParams& p, const CUtensorMap& q, const CUtensorMap& keys,
                             cudaStream_t stream) {
  using Small = IndexTileTraits<1, kDense, kKeyType, kShare>;
  using Large = IndexTileTraits<2, kDense, kKeyType, kShare>;
  return p.schedule.tile_rows == Small::kRows ? launch_tile<Small>(p, q, keys, stream)
                                              : launch_tile<Large>(p, q, keys, stream);
}

template <hopper::Element kKeyType, bool kShare>
cudaError_t launch_tile_keys(const IndexTileParams& p, const CUtensorMap& q, const CUtensorMap& keys,
                             cudaStream_t stream) {
  return p.scores != nullptr ? launch_tile_rows<true, kKeyType, kShare>(p, q, keys, stream)
                             : launch_tile_rows<false, kKeyType, kShare>(p, q, keys, stream);
}

template <bool kShare>
cudaError_t launch_tile(const IndexTileParams& p, hopper::Element key_type, const CUtensorMap& q,
                        const CUtensorMap& keys, cudaStream_t stream) {
  return key_type == hopper::Element::kBF16
             ? launch_tile_keys<hopper::Element::kBF16, kShare>(p, q, keys, stream)
             : launch_tile_keys<hopper::Element::kE4M3, kShare>(p, q, keys, stream);
}

template <bool kShare>
cudaError_t launch_schedule(const IndexBatch& batch, const IndexSchedule& schedule,
                            const IndexShareList& share, cudaStream_t stream) {
  return hopper::launch_dependent(index_schedule_kernel<kShare>, {dim3(1), IndexScheduleTraits::kThreads},
                                  stream, batch, schedule, share);
}

// Of lists.
template <bool kShare>
cudaError_t launch_merge(const IndexMergeParams& p, cudaStream_t stream) {
  // A row has about ctas / tiles + 1 pieces in each window; many pieces deserve a whole CTA.
  constexpr int kManyPieces = 12;
  using One = IndexMergeTraits<1, kShare>;
  using All = IndexMergeTraits<8, kShare>;
  if (p.schedule.ctas / p.schedule.tile_cap >= kManyPieces)
    return hopper::launch_dependent(index_merge_kernel<All>, {dim3(p.batch.total_rows), All::kThreads},
                                    stream, p);
  const int ctas = (p.batch.total_rows + One::kRows - 1) / One::kRows;
  return hopper::launch_dependent(index_merge_kernel<One>, {dim3(ctas), One::kThreads}, stream, p);
}

}  // namespace msa::sm90
