// SPDX-License-Identifier: Apache-2.0
// Which instantiation of the scan and of its selection serves a step, of a whole cache or of a share.
#pragma once

#include "msa/sm90/index/index_scan.cuh"
#include "msa/sm90/index/index_select.cuh"
#include "sm90/launch.cuh"
#include "sm90/tensor_map.h"

namespace msa::sm90 {

// One CTA for each SM, or for so many units as there can be: then a warp has at most one, and with a short
// ring the next kernel's CTAs fit beside.
template <typename T>
cudaError_t launch_scan(const IndexScanParams& p, const CUtensorMap& keys, int sms, cudaStream_t stream) {
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

template <hopper::Element kKeyType, bool kShare>
cudaError_t launch_scan_rows(const IndexScanParams& p, const CUtensorMap& keys, int sms,
                             cudaStream_t stream) {
  const int rows = p.batch.queries * p.batch.heads;
  if (rows <= 8) return launch_scan<IndexScanTraits<8, kKeyType, kShare>>(p, keys, sms, stream);
  if (rows <= 16) return launch_scan<IndexScanTraits<16, kKeyType, kShare>>(p, keys, sms, stream);
  return launch_scan<IndexScanTraits<32, kKeyType, kShare>>(p, keys, sms, stream);
}

template <bool kShare>
cudaError_t launch_scan(const IndexScanParams& p, hopper::Element key_type, const CUtensorMap& keys, int sms,
                        cudaStream_t stream) {
  return key_type == hopper::Element::kBF16
             ? launch_scan_rows<hopper::Element::kBF16, kShare>(p, keys, sms, stream)
             : launch_scan_rows<hopper::Element::kE4M3, kShare>(p, keys, sms, stream);
}

// launch.operator()<traits>() with threads enough that all of a row's scores are on their way at once.
template <int kUnits, typename Launch>
cudaError_t launch_for_blocks(int max_blocks, const Launch& launch) {
  using Short = IndexSelectTraits<kUnits, 4, 1>;
  using Middle = IndexSelectTraits<kUnits, 8, 4>;
  using Long = IndexSelectTraits<kUnits, 32, 8>;
  if (max_blocks <= Short::kRound) return launch.template operator()<Short>();
  if (max_blocks <= Middle::kRound) return launch.template operator()<Middle>();
  return launch.template operator()<Long>();
}

template <typename Launch>
cudaError_t launch_for_length(const IndexSelectParams& p, const Launch& launch) {
  switch (p.units_per_block) {
    case 1:
      return launch_for_blocks<1>(p.batch.max_blocks, launch);
    case 2:
      return launch_for_blocks<2>(p.batch.max_blocks, launch);
    default:
      return launch_for_blocks<4>(p.batch.max_blocks, launch);
  }
}

}  // namespace msa::sm90
