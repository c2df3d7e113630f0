// SPDX-License-Identifier: Apache-2.0
// Small device functions that the dense kernels share.
#pragma once

#include "msa/sm90/dense/dense_plan.h"
#include "msa/sm90/softmax.cuh"
#include "sm90/ptx.cuh"

namespace msa::sm90::dense {

// `request` may be num_requests: where the padding rows start.
__device__ __forceinline__ int first_query_of(const DenseParams& p, int request) {
  return p.cu_seqlens_q != nullptr ? p.cu_seqlens_q[request] : request * p.max_queries_per_request;
}

// Stages of one KV head. Padding counts as one: its rows are written too.
__device__ __forceinline__ int stages_of(const DenseParams& p, int request) {
  return max(1, (p.seq_lens[request] + kStageKeys - 1) / kStageKeys);
}

// The first stage of a CTA's share of `total`, and the CTA whose share holds stage `s`.
__device__ __forceinline__ int share_begin(int cta, int ctas, int total) {
  return static_cast<int>(int64_t{total} * cta / ctas);
}
__device__ __forceinline__ int share_of(int s, int ctas, int total) {
  return static_cast<int>(((int64_t{s} + 1) * ctas - 1) / total);
}

// e4m3 caches are multiplied as f16, which e4m3 converts to in one instruction. A row of q then needs a power
// of two that brings its largest element near 1; its inverse goes into the softmax scale.
struct RowScale {
  float factor, inverse;
};

// `largest`: both halves hold magnitudes of bf16 numbers.
__device__ __forceinline__ RowScale scale_row(uint32_t largest) {
  const uint32_t exponent = (largest >> 16 > (largest & 0xffff) ? largest >> 16 : largest & 0xffff) >> 7;
  const uint32_t e = min(max(exponent, 1u), 253u);
  return {__uint_as_float((254 - e) << 23), __uint_as_float(e << 23)};
}

__device__ __forceinline__ uint32_t largest_of(uint32_t largest, uint32_t pair) {
  return __vmaxu2(largest, pair & 0x7fff7fffu);
}

__device__ __forceinline__ uint32_t bf16_to_f16(uint32_t pair, float factor) {
  return pack_pair<true>(__uint_as_float(pair << 16) * factor, __uint_as_float(pair & 0xffff0000u) * factor);
}

__device__ __forceinline__ float key_scale(const DenseParams& p, int head) {
  return p.kv_scales == nullptr ? 1.0f : p.kv_scales[2 * head];
}
__device__ __forceinline__ float value_scale(const DenseParams& p, int head) {
  return p.kv_scales == nullptr ? 1.0f : p.kv_scales[2 * head + 1];
}

// K or V of consecutive keys, both halves of the channels.
__device__ __forceinline__ void load_keys(void* dst, const CUtensorMap* map, uint64_t* bar, int row) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %3}], "
      "[%2];" ::"r"(hopper::smem_address(dst)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(hopper::smem_address(bar)), "r"(0), "r"(row)
      : "memory");
}

__device__ __forceinline__ void load_queries(void* dst, const CUtensorMap* map, uint64_t* bar, int query,
                                             int head) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %3, %4, %3, %5}], [%2];" ::"r"(hopper::smem_address(dst)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(hopper::smem_address(bar)), "r"(0), "r"(query), "r"(head)
      : "memory");
}

}  // namespace msa::sm90::dense
