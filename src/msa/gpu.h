// SPDX-License-Identifier: Apache-2.0
// MSA on CUDA (Hopper): a plan takes the metadata of a step once, its operations then run for each layer.
//
//   store()   norms and turns the projections' heads, writes K, V and index keys into their blocks
//   index()   selects blocks for each query and KV head
//   candidates(), select()  the same in two, where several ranks score a share of the blocks each
//   attend()  softmax attention over the selected blocks
//   dense()   softmax attention over every visible key
//   sparse()  store(), index() and attend() of a layer, in fewer launches where a step is small
//
// A plan has one workspace from its creation on, sized by stated maxima. prepare() and the operations only
// launch: they never allocate, synchronise or read back, so all of them can be captured in CUDA graphs.
// Metadata and tensors are device pointers of the caller; a replayed graph sees what they hold then. Metadata
// must be written before prepare() in stream order, and not by a kernel that lets its successor start early.
// Keys and values of earlier steps likewise: they are read while the kernel ahead still runs, this step's are
// not. One plan serves one stream at a time, on the device of its creation. sparrow_msa.h is the same in C.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "msa/gpu_config.h"

namespace msa::gpu {

struct StoreArgs {
  struct Rows {
    const void* data = nullptr;
    int64_t stride = 0;  // elements from row to row
  };
  // From the projections, bf16; index_q and index_k are nullptr in dense layers. Steps that share the index
  // have all index_heads for kv_heads in index_q and index_q_out.
  Rows q;              // [rows, query_heads, kHeadDim]
  Rows k, v, index_q;  // [rows, kv_heads, kHeadDim]
  Rows index_k;        // [rows, kHeadDim]
  // [kHeadDim] bf16 each: x * rsqrt(mean(x^2) + eps) * (1 + weight)
  const void *q_norm = nullptr, *k_norm = nullptr, *index_q_norm = nullptr, *index_k_norm = nullptr;
  float eps = 1e-6f;
  const int64_t* slots = nullptr;    // [rows] block * kBlock + offset; -1: a padding row, nothing is written
  const float* kv_scales = nullptr;  // [kv_heads, 2 (K, V)]: e4m3 pages hold x / scale; nullptr: 1
  void* q_out = nullptr;             // [rows, query_heads, kHeadDim] bf16; may be q.data if contiguous
  void* index_q_out = nullptr;       // [rows, kv_heads, kHeadDim] bf16
  void* kv_pages = nullptr;          // [blocks, kv_heads, 2 (K, V), kBlock, kHeadDim] kv_type
  void* index_pages = nullptr;       // [blocks, kBlock, kHeadDim] index_type
};

struct IndexArgs {
  const void* q = nullptr;        // [rows, kv_heads, kHeadDim] bf16
  const void* k_pages = nullptr;  // [num_blocks, kBlock, kHeadDim] index_type
  int64_t num_blocks = 0;
  int32_t* selected = nullptr;  // [rows, kv_heads, top_k] out: ascending, -1 at the tail
};

// A candidate is 64 bits, whose order is that of preference; 0 is none.
inline constexpr int kCandidates = 16;  // of a query and head

struct CandidateArgs {
  const void* q = nullptr;        // [rows, index_heads, kHeadDim] bf16
  const void* k_pages = nullptr;  // [num_blocks, kBlock, kHeadDim] index_type
  int64_t num_blocks = 0;
  uint64_t* candidates = nullptr;  // [rows, index_heads, kCandidates] out: the best of this share's blocks
};

struct SelectArgs {
  const uint64_t* candidates = nullptr;  // [shares, rows, kv_heads, kCandidates] of this rank's heads
  int32_t* selected = nullptr;           // as IndexArgs'
};

struct AttendArgs {
  const void* q = nullptr;         // [rows, query_heads, kHeadDim] bf16
  const void* kv_pages = nullptr;  // [num_blocks, kv_heads, 2 (K, V), kBlock, kHeadDim] kv_type
  int64_t num_blocks = 0;
  const float* kv_scales = nullptr;   // [kv_heads, 2 (K, V)] on the device; nullptr: 1
  const int32_t* selected = nullptr;  // [rows, kv_heads, top_k]; dense() wants nullptr
  void* out = nullptr;                // [rows, query_heads, kHeadDim] bf16; zeros for padding rows
  float scale = 0.08838834764831845f;
};

struct SparseArgs {
  StoreArgs store;  // the index and the attention are over what it writes
  int64_t num_blocks = 0;
  int32_t* selected = nullptr;  // as IndexArgs' and AttendArgs'
  void* out = nullptr;
  float scale = 0.08838834764831845f;
};

class Plan {
 public:
  // `workspace`: workspace_bytes() of device memory, 256-byte aligned, which the caller keeps as long as the
  // plan; nullptr: the plan allocates its own.
  static Status create(const PlanConfig& config, std::unique_ptr<Plan>* plan, void* workspace = nullptr);
  // Bytes of device memory that a plan of this config needs here; msa::gpu::workspace_bytes() needs no
  // device.
  static Status workspace_bytes(const PlanConfig& config, int64_t* bytes);
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  // Once for each step, before its layers.
  Status prepare(const Step& step, cudaStream_t stream);
  // Once for each layer.
  Status store(const StoreArgs& args, cudaStream_t stream) const;
  Status index(const IndexArgs& args, cudaStream_t stream) const;
  Status candidates(const CandidateArgs& args, cudaStream_t stream) const;
  Status select(const SelectArgs& args, cudaStream_t stream) const;
  Status attend(const AttendArgs& args, cudaStream_t stream) const;
  Status dense(const AttendArgs& args, cudaStream_t stream) const;
  Status sparse(const SparseArgs& args, cudaStream_t stream) const;
  // Which kernels serve the step that was prepared last, in words.
  std::string describe() const;

 private:
  struct State;
  explicit Plan(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace msa::gpu
