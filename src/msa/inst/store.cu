// SPDX-License-Identifier: Apache-2.0
#include "msa/sm90/launch.cuh"
#include "msa/sm90/store/store.cuh"

namespace msa::sm90 {

cudaError_t launch_rotary(const RotaryParams& p, cudaStream_t stream) {
  const int64_t values = int64_t{p.rows} * p.half;
  if (values == 0) return cudaSuccess;
  if (p.half > kMaxRotaryDim / 2) return cudaErrorInvalidValue;
  const auto ctas = static_cast<unsigned>((values + RotaryTraits::kThreads - 1) / RotaryTraits::kThreads);
  return launch_dependent(rotary_kernel<RotaryTraits>, dim3(ctas), RotaryTraits::kThreads, 0, stream, p);
}

cudaError_t launch_store(const StoreParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const bool known_half = p.half == 8 || p.half == 16 || p.half == 32 || p.half == 64;
  if (!known_half || p.kv_heads < 1 || p.kv_heads > StoreTraits::kHeads || p.query_heads < 1)
    return cudaErrorInvalidValue;
  const int64_t chunks = int64_t{p.rows} * store_chunks(p);
  const auto ctas =
      static_cast<unsigned>((chunks + StoreTraits::kChunksPerCta - 1) / StoreTraits::kChunksPerCta);
  return launch_dependent(store_kernel<StoreTraits>, dim3(ctas), StoreTraits::kThreads, 0, stream, p);
}

}  // namespace msa::sm90
