// SPDX-License-Identifier: Apache-2.0
#include "msa/sm90/store/store.cuh"
#include "sm90/launch.cuh"

namespace msa::sm90 {

cudaError_t launch_rotary(const RotaryParams& p, cudaStream_t stream) {
  const int64_t values = int64_t{p.rows} * p.half;
  if (values == 0) return cudaSuccess;
  if (p.half > kMaxRotaryDim / 2) return cudaErrorInvalidValue;
  const auto ctas = static_cast<unsigned>((values + RotaryTraits::kThreads - 1) / RotaryTraits::kThreads);
  return hopper::launch_dependent(rotary_kernel<RotaryTraits>, {dim3(ctas), RotaryTraits::kThreads}, stream,
                                  p);
}

namespace {

template <typename T>
cudaError_t launch_chunks(const StoreParams& p, cudaStream_t stream) {
  const int64_t chunks = int64_t{p.rows} * store_chunks<T>(p);
  const auto ctas = static_cast<unsigned>((chunks + T::kChunksPerCta - 1) / T::kChunksPerCta);
  return hopper::launch_dependent(store_kernel<T>, {dim3(ctas), T::kThreads}, stream, p);
}

}  // namespace

cudaError_t launch_store(const StoreParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const bool known_half = p.half == 8 || p.half == 16 || p.half == 32 || p.half == 64;
  if (!known_half || p.kv_heads < 1 || p.kv_heads > kMaxStoreKvHeads || p.query_heads < 1 ||
      p.index_heads < 1 || p.index_heads > kMaxStoreKvHeads)
    return cudaErrorInvalidValue;
  using Few = StoreTraits<1>;
  constexpr int64_t kFewChunks = 128 * Few::kChunksPerCta;  // about a CTA for each SM
  return int64_t{p.rows} * store_chunks<Few>(p) <= kFewChunks ? launch_chunks<Few>(p, stream)
                                                              : launch_chunks<StoreTraits<4>>(p, stream);
}

}  // namespace msa::sm90
