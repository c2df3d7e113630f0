// SPDX-License-Identifier: Apache-2.0
// Loads and stores that other GPUs see, and waiting for them with a deadline.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/comm/peers.h"

namespace sparrow::ops::cuda {

// Each word for itself: no order among them is asked for.
__device__ __forceinline__ uint4 load_shared_by_all(const void* from) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ void store_shared_by_all(void* to, const uint4& v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

__device__ __forceinline__ void raise_flag(uint32_t* flag, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t load_flag(const uint32_t* flag) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

// The place in rank r's memory that `mine` is in one's own.
template <typename T>
__device__ __forceinline__ T* at_peer(const Peers& p, int r, T* mine) {
  const auto offset = reinterpret_cast<const std::byte*>(mine) - p.memory[p.rank];
  return reinterpret_cast<T*>(p.memory[r] + offset);
}
__device__ __forceinline__ PeerWords* words_of(const Peers& p, int r) {
  return reinterpret_cast<PeerWords*>(p.memory[r]);
}

__device__ __forceinline__ uint64_t now_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

// Asked after each attempt whether to give up waiting.
class Patience {
 public:
  __device__ explicit Patience(const Peers& peers) : peers_(peers) {}

  // Looks at the clock after some hundred attempts: who is there in time never pays for it.
  __device__ bool is_over(int awaited) {
    if (++attempts_ % kAttempts != 0) return false;
    volatile uint32_t* const failed = &words_of(peers_, peers_.rank)->failed;
    if (*failed != 0) return true;
    const uint64_t now = now_ns();
    if (began_ == 0) began_ = now;
    if (now - began_ < peers_.patience_ns) return false;
    *failed = 1;
    if (peers_.report != nullptr)
      *const_cast<volatile uint32_t*>(peers_.report) = 1 + static_cast<uint32_t>(awaited);
    __threadfence_system();
    return true;
  }

 private:
  static constexpr uint32_t kAttempts = 256;

  const Peers& peers_;
  uint32_t attempts_ = 0;
  uint64_t began_ = 0;
};

// Until that rank has raised its flag for this exchange or a later one.
__device__ __forceinline__ void wait_for_flag(const Peers& p, int rank, const uint32_t* flag,
                                              uint32_t exchange) {
  Patience patience(p);
  while (static_cast<int32_t>(load_flag(flag) - exchange) < 0)
    if (patience.is_over(rank)) return;
}

// Whether this CTA is the last of the launch to come here: what all CTAs wrote is then visible to it, and to
// whoever sees a flag that it raises. All threads call it.
__device__ __forceinline__ bool is_last_cta(const Peers& p, int num_ctas) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    last = atomicInc(&words_of(p, p.rank)->ctas_done, num_ctas - 1) == static_cast<uint32_t>(num_ctas - 1);
    __threadfence_system();
  }
  __syncthreads();
  return last;
}

}  // namespace sparrow::ops::cuda
