// SPDX-License-Identifier: Apache-2.0
// Prompts over a share of the cache.
#include "msa/sm90/index/index_tile_launch.cuh"

namespace msa::sm90 {

cudaError_t launch_share_schedule(const IndexBatch& batch, const IndexSchedule& schedule,
                                  const IndexShareList& share, cudaStream_t stream) {
  return launch_schedule<true>(batch, schedule, share, stream);
}

cudaError_t launch_share_tile(const IndexTileParams& p, hopper::Element key_type, const CUtensorMap& q,
                              const CUtensorMap& keys, cudaStream_t stream) {
  return launch_tile<true>(p, key_type, q, keys, stream);
}

cudaError_t launch_share_merge(const IndexMergeParams& p, cudaStream_t stream) {
  return launch_merge<true>(p, stream);
}

}  // namespace msa::sm90
