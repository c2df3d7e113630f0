// SPDX-License-Identifier: Apache-2.0
// The scan of a share of the cache, and what comes before and after it.
#include "msa/sm90/index/index_scan.cuh"
#include "msa/sm90/index/index_scan_launch.cuh"
#include "msa/sm90/index/index_select.cuh"
#include "msa/sm90/index/index_share.cuh"
#include "sm90/launch.cuh"

namespace msa::sm90 {

cudaError_t launch_share_scan(const IndexScanParams& p, hopper::Element key_type, const CUtensorMap& keys,
                              int sms, cudaStream_t stream) {
  return launch_scan<true>(p, key_type, keys, sms, stream);
}

cudaError_t launch_share_select(const IndexSelectParams& p, cudaStream_t stream) {
  return launch_for_length(p, [&]<typename T>() {
    return hopper::launch_dependent(share_select_kernel<T>, {dim3(p.batch.total_rows), T::kThreads}, stream,
                                    p);
  });
}

cudaError_t launch_share_list(const IndexListParams& p, cudaStream_t stream) {
  return hopper::launch_dependent(share_list_kernel, {dim3(p.batch.num_requests), ShareListTraits::kThreads},
                                  stream, p);
}

cudaError_t launch_share_gather(const IndexGatherParams& p, cudaStream_t stream) {
  const int ctas = (p.batch.total_rows + ShareGatherTraits::kWarps - 1) / ShareGatherTraits::kWarps;
  return hopper::launch_dependent(share_gather_kernel, {dim3(ctas), ShareGatherTraits::kThreads}, stream, p);
}

}  // namespace msa::sm90
