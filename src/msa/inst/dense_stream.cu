// SPDX-License-Identifier: Apache-2.0
#include "msa/sm90/dense/dense_stream.cuh"

#include <algorithm>

#include "msa/sm90/dense/dense_merge.cuh"
#include "sm90/launch.cuh"
#include "sm90/tensor_map.h"

namespace msa::sm90::dense {
namespace {

template <typename Traits>
cudaError_t launch_merge(const DenseParams& p, const StreamWorkspace& ws, int rows, int ctas,
                         cudaStream_t stream) {
  const dim3 grid((rows + Traits::kRows - 1) / Traits::kRows * Traits::kShares, p.kv_heads,
                  p.num_requests + 1);
  return hopper::launch_dependent(merge_stream_kernel<Traits>, {grid, Traits::kThreads}, stream, p, ws, ctas);
}

template <hopper::Element kType>
cudaError_t launch_type(const DenseParams& p, const StreamWorkspace& ws, cudaStream_t stream) {
  using Traits = StreamTraits<kType>;
  CUtensorMap map;
  int sms = 0;
  cudaError_t error = make_kv_map(p, Traits::kTileKeys, true, &map);
  if (error == cudaSuccess) error = multiprocessors(&sms);
  // Some of the shared memory must be left for the merging kernel's CTAs; of itself the runtime would set
  // aside no more than this kernel needs.
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(stream_kernel<Traits>, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
  if (error != cudaSuccess) return error;
  constexpr int kBytes = static_cast<int>(sizeof(StreamShared<Traits>));
  const int64_t stages =
      int64_t{p.num_requests} * p.kv_heads * std::max(1, p.max_blocks * kBlock / kStageKeys);
  const int ctas = static_cast<int>(std::min<int64_t>({stages, sms, kMaxStreamCtas}));
  if (ctas > 0)
    error = hopper::launch_dependent(stream_kernel<Traits>, {dim3(ctas), Traits::kThreads, kBytes}, stream, p,
                                     ws, map);
  if (error != cudaSuccess) return error;
  // With many requests each has few parts.
  constexpr int kManyUnits = 16;
  const int rows = p.max_queries_per_request * p.group, units = p.num_requests * p.kv_heads;
  return units < kManyUnits ? launch_merge<MergeMany>(p, ws, rows, ctas, stream)
                            : launch_merge<MergeFew>(p, ws, rows, ctas, stream);
}

}  // namespace

cudaError_t launch_stream(const DenseParams& p, const StreamWorkspace& ws, cudaStream_t stream) {
  if (p.kv_type == hopper::Element::kE4M3) return launch_type<hopper::Element::kE4M3>(p, ws, stream);
  return launch_type<hopper::Element::kBF16>(p, ws, stream);
}

}  // namespace msa::sm90::dense
