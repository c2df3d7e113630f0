// SPDX-License-Identifier: Apache-2.0
// Loads and stores that C++ has no name for: with an order, a cache policy, a predicate, or a 32-bit address
// in shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace hopper {

// ---- global memory ----

// Flags in global memory: what the storing thread wrote, or saw written before a barrier, is visible to
// whoever loads the flag.
__device__ __forceinline__ void store_release(int32_t* flag, int32_t value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ __forceinline__ int32_t load_acquire(const int32_t* flag) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* flag) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
__device__ __forceinline__ void add_release(uint32_t* flag, uint32_t step) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(flag), "r"(step) : "memory");
}

// The same without that promise: the word itself is what is said.
__device__ __forceinline__ void store_relaxed(float* to, float value) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}
__device__ __forceinline__ float load_relaxed(const float* from) {
  float value;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ uint32_t load_relaxed(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// 16 bytes that nobody writes and that are read once: they stay out of the L1.
__device__ __forceinline__ uint4 load_once(const void* from, uint64_t policy) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from), "l"(policy));
  return v;
}

// 16 bytes with one predicated instruction and no branch; zeros where `there` is false. With void pointers
// the compiler orders the code around them in another way.
template <typename T>
__device__ __forceinline__ uint4 load_global_if(bool there, const T* from) {
  uint4 v;
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.u32 p, %5, 0;\n mov.u32 %0, 0;\n mov.u32 %1, 0;\n mov.u32 %2, 0;\n"
      " mov.u32 %3, 0;\n @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(from), "r"(static_cast<uint32_t>(there))
      : "memory");
  return v;
}
// Four bytes likewise.
__device__ __forceinline__ uint32_t load_global_32_if(bool there, const uint32_t* from) {
  uint32_t v;
  asm volatile("{\n .reg .pred p;\n setp.ne.u32 p, %2, 0;\n mov.u32 %0, 0;\n @p ld.global.u32 %0, [%1];\n}"
               : "=&r"(v)
               : "l"(from), "r"(static_cast<uint32_t>(there))
               : "memory");
  return v;
}
template <typename T>
__device__ __forceinline__ void store_global_if(bool there, T* to, const uint4& v) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.u32 p, %5, 0;\n @p st.global.v4.u32 [%4], {%0, %1, %2, %3};\n}" ::"r"(v.x),
      "r"(v.y), "r"(v.z), "r"(v.w), "l"(to), "r"(static_cast<uint32_t>(there))
      : "memory");
}

// ---- shared memory at a 32-bit address ----

// Flags among the threads of a CTA.
__device__ __forceinline__ void store_shared_release(uint32_t flag, int32_t value) {
  asm volatile("st.release.cta.shared.s32 [%0], %1;" ::"r"(flag), "r"(value) : "memory");
}
__device__ __forceinline__ int32_t load_shared_acquire(uint32_t flag) {
  int32_t value;
  asm volatile("ld.acquire.cta.shared.s32 %0, [%1];" : "=r"(value) : "r"(flag) : "memory");
  return value;
}

__device__ __forceinline__ uint64_t load_shared_64(uint32_t address) {
  uint64_t v;
  asm volatile("ld.shared.u64 %0, [%1];" : "=l"(v) : "r"(address) : "memory");
  return v;
}

__device__ __forceinline__ void store_shared_64(uint32_t address, uint64_t v) {
  asm volatile("st.shared.u64 [%0], %1;" ::"r"(address), "l"(v) : "memory");
}

__device__ __forceinline__ uint4 load_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

__device__ __forceinline__ void store_shared(uint32_t address, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

}  // namespace hopper
