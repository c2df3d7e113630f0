// SPDX-License-Identifier: Apache-2.0
// Sparse attention for few queries (decode, speculative verify, short extends): each query reads its own
// blocks once. Memory-bound. With few rows the slots of a query are split over the CTAs of a cluster, which
// merge their sums through each other's shared memory, in the order of the splits. The split depends on the
// row count given by the host, never on device data.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "msa/layout/attend_layout.h"

namespace msa::sm90 {

enum class KvType : uint8_t { kBF16, kE4M3 };

// The scores of the index scan, from which each CTA selects the blocks of its query for itself.
struct AttendSelect {
  const float* scores = nullptr;  // [rows, kv_heads, max_blocks * units_per_block]; nullptr: do not select
  int32_t* selected = nullptr;    // [rows, kv_heads, top_k] out
  uint32_t* counter = nullptr;    // of the scan: set to 0; nullptr: there was none
  int units_per_block = 0;        // 2 or 4
  int local_blocks = 0, init_blocks = 0;
};

struct AttendDecodeParams {
  const __nv_bfloat16* q = nullptr;      // [rows, kv_heads * group, 128]
  const void* kv_pages = nullptr;        // [pages, kv_heads, 2 (K, V), 128, 128]
  const float* kv_scales = nullptr;      // [kv_heads, 2 (K, V)] e4m3 only; nullptr: all 1
  const int32_t* selected = nullptr;     // [rows, kv_heads, top_k] ascending logical blocks, -1 tail
  AttendSelect select;                   // instead of `selected`, up to attend_select_blocks() of a table
  const int32_t* block_table = nullptr;  // [num_requests, max_blocks]
  const int32_t* seq_lens =
      nullptr;  // [num_requests] keys, those of this step included; 0: a padding request
  const int32_t* cu_seqlens_q = nullptr;  // [num_requests + 1]; nullptr: queries_per_request each
  __nv_bfloat16* out = nullptr;           // [rows, kv_heads * group, 128]; zeros for padding rows
  void* workspace = nullptr;              // attend_decode_workspace_bytes()
  int rows = 0;
  int num_requests = 0;
  int queries_per_request = 1;
  int kv_heads = 1;
  int group = 16;  // query heads per KV head: 1 to 16
  int top_k = 16;
  int max_blocks = 0;
  int num_pages = 0;
  float scale = 0.08838834764831845f;  // of the softmax
  int splits = 0;  // CTAs that share one (row, KV head): a power of two up to 16; 0: attend_decode_splits()
};

// The splits that are fastest. num_requests 0: as many as rows.
int attend_decode_splits(int rows, int kv_heads, int num_requests = 0);

// The widest block table with which attention can select for itself.
int attend_select_blocks();

// block_table, seq_lens and cu_seqlens_q are read before the kernel ahead in the stream is over, if that one
// lets its successor start early: they must be older. So are keys and values of earlier steps, where the
// attention selects and there is nothing to choose.
cudaError_t launch_attend_decode(const AttendDecodeParams& params, KvType kv_type, cudaStream_t stream);

}  // namespace msa::sm90
