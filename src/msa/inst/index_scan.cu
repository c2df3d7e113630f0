// SPDX-License-Identifier: Apache-2.0
#include "msa/sm90/index/index_scan.cuh"
#include "msa/sm90/index/index_select.cuh"
#include "sm90/launch.cuh"
#include "sm90/tensor_map.h"

namespace msa::sm90 {
namespace {

// One CTA for each SM, or for so many units as there can be: then a warp has at most one, and with a short
// ring the next kernel's CTAs fit beside.
template <typename T>
cudaError_t launch(const IndexScanParams& p, const CUtensorMap& keys, int sms, cudaStream_t stream) {
  const IndexBatch& b = p.batch;
  const int64_t units = int64_t{b.num_requests} * b.max_blocks * T::kUnitsPerBlock;
  const bool few = units <= int64_t{sms} * T::kWarps;
  const int ctas = few ? static_cast<int>((units + T::kWarps - 1) / T::kWarps) : sms;
  const int smem = T::smem_bytes(b.num_requests, few ? 1 : T::kStages);
  return hopper::launch_dependent(index_scan_kernel<T>,
                                  {.grid = dim3(ctas),
                                   .threads = T::kThreads,
                                   .smem_bytes = smem,
                                   .most_smem_bytes = T::smem_bytes(kMaxIndexRequests, T::kStages)},
                                  stream, p, keys);
}

template <hopper::Element kKeyType>
cudaError_t launch_rows(const IndexScanParams& p, const CUtensorMap& keys, int sms, cudaStream_t stream) {
  const int rows = p.batch.queries * p.batch.heads;
  if (rows <= 8) return launch<IndexScanTraits<8, kKeyType>>(p, keys, sms, stream);
  if (rows <= 16) return launch<IndexScanTraits<16, kKeyType>>(p, keys, sms, stream);
  return launch<IndexScanTraits<32, kKeyType>>(p, keys, sms, stream);
}

template <int kUnits>
cudaError_t launch_select(const IndexSelectParams& p, cudaStream_t stream) {
  // Threads enough that all of a row's scores are on their way at once.
  using Short = IndexSelectTraits<kUnits, 4, 1>;
  using Middle = IndexSelectTraits<kUnits, 8, 4>;
  using Long = IndexSelectTraits<kUnits, 32, 8>;
  const dim3 grid(p.batch.total_rows);
  if (p.batch.max_blocks <= Short::kRound)
    return hopper::launch_dependent(index_select_kernel<Short>, {grid, Short::kThreads}, stream, p);
  if (p.batch.max_blocks <= Middle::kRound)
    return hopper::launch_dependent(index_select_kernel<Middle>, {grid, Middle::kThreads}, stream, p);
  return hopper::launch_dependent(index_select_kernel<Long>, {grid, Long::kThreads}, stream, p);
}

}  // namespace

cudaError_t launch_index_scan(const IndexScanParams& p, hopper::Element key_type, const CUtensorMap& keys,
                              int sms, cudaStream_t stream) {
  return key_type == hopper::Element::kBF16 ? launch_rows<hopper::Element::kBF16>(p, keys, sms, stream)
                                            : launch_rows<hopper::Element::kE4M3>(p, keys, sms, stream);
}

cudaError_t launch_index_select(const IndexSelectParams& p, cudaStream_t stream) {
  switch (p.units_per_block) {
    case 1:
      return launch_select<1>(p, stream);
    case 2:
      return launch_select<2>(p, stream);
    default:
      return launch_select<4>(p, stream);
  }
}

}  // namespace msa::sm90
