// SPDX-License-Identifier: Apache-2.0
// MSA block selection on Hopper: scores every 128-token block with the index heads and keeps the best top_k
// per query and head. Semantics are those of msa::index(). Nothing here allocates, synchronises or reads
// device data on the host: grids and workspaces follow from host-known maxima, so every launch can be
// captured in a CUDA graph.
//
// Two kernel families, chosen by the rows (queries x heads) that one request may have:
//   scan  <= 32 rows: decode, speculative verify, short extends. Keys in M; bound by the bandwidth of the
//   index keys. tile  more rows:  prefill and chunks. Rows in M; bound by the tensor cores.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "msa/layout/index_layout.h"
#include "msa/msa.h"
#include "sm90/tensor_map.h"

namespace msa::sm90 {

struct IndexLaunch {
  IndexShape shape;
  Selection selection;
  hopper::Element key_type = hopper::Element::kBF16;
  int64_t num_pages = 0;
  const void* q = nullptr;        // [total_queries, heads, kHeadDim] bf16
  const void* k_pages = nullptr;  // [num_pages, kBlock, kHeadDim] key_type
  const int32_t* cu_seqlens_q =
      nullptr;  // [num_requests + 1]; nullptr: max_queries for each request (decode)
  const int32_t* seq_lens =
      nullptr;  // [num_requests] keys, this step's included; 0: a padding row, selects nothing
  const int32_t* block_table = nullptr;  // [num_requests, max_blocks]
  int32_t* selected = nullptr;           // [total_queries, heads, top_k] out: ascending, -1 at the tail
  void* schedule = nullptr;              // index_schedule_bytes(), filled by prepare_index()
  void* workspace = nullptr;             // index_workspace_bytes(), contents need not be kept
  // Of a share of the cache; block_table is that of the whole, and k_pages the share's pages alone, or, if it
  // has_all_pages, those of the whole.
  IndexShare share;
  bool has_all_pages = false;
  void* share_list = nullptr;      // index_share_layout(), filled by prepare_index()
  uint64_t* candidates = nullptr;  // [total_queries, heads, kListLength] out of launch_candidates()
};

// The selection from the candidates of all shares.
struct IndexGather {
  IndexShape shape;  // its heads are those that selections are wanted of
  Selection selection;
  const int32_t *cu_seqlens_q = nullptr, *seq_lens = nullptr;  // as IndexLaunch's
  int num_shares = 1;                                          // <= kMaxIndexShares
  int index_heads = 0, first_head = 0;                         // of the candidates; the first that is wanted
  const uint64_t* candidates = nullptr;  // [num_shares, total_queries, index_heads, kListLength], shares
  int64_t share_stride = 0;              // so far apart
  int32_t* selected = nullptr;           // [total_queries, heads, top_k] out
};

// What a scan of one query for each request leaves in a launch's buffers for attention to select from.
struct IndexScores {
  const float* scores;  // [total_queries, heads, max_blocks * units_per_block]
  int units_per_block;
  uint32_t* counter;  // to be set to 0 before the next scan; nullptr: there was none
};

// Once for each step, before its first layer: cuts the step's work into equal shares for the SMs.
cudaError_t prepare_index(const IndexLaunch& launch, cudaStream_t stream);

// Once for each layer. seq_lens, cu_seqlens_q, block_table and the keys of earlier steps are read before the
// kernel ahead in the stream is over, if that one lets its successor start early: they must be older. The
// keys of this step need not be.
cudaError_t launch_index(const IndexLaunch& launch, cudaStream_t stream);

// The same without the selection, where each request has one query (can_score()): attention selects.
bool can_score(const IndexLaunch& launch);
cudaError_t launch_scores(const IndexLaunch& launch, IndexScores* scores, cudaStream_t stream);

// The best blocks of a share for each query and head, as keys (index_key.cuh), best first, 0 at the tail;
// of any contents where every visible block has a place.
cudaError_t launch_candidates(const IndexLaunch& launch, cudaStream_t stream);
cudaError_t launch_gather(const IndexGather& gather, cudaStream_t stream);

}  // namespace msa::sm90
