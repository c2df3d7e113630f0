// SPDX-License-Identifier: Apache-2.0
#include "msa/sm90/index/index_scan_launch.cuh"

namespace msa::sm90 {

cudaError_t launch_index_scan(const IndexScanParams& p, hopper::Element key_type, const CUtensorMap& keys,
                              int sms, cudaStream_t stream) {
  return launch_scan<false>(p, key_type, keys, sms, stream);
}

cudaError_t launch_index_select(const IndexSelectParams& p, cudaStream_t stream) {
  return launch_for_length(p, [&]<typename T>() {
    return hopper::launch_dependent(index_select_kernel<T>, {dim3(p.batch.total_rows), T::kThreads}, stream,
                                    p);
  });
}

}  // namespace msa::sm90
