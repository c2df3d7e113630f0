// SPDX-License-Identifier: Apache-2.0
// MSA, the block-sparse attention of MiniMax-M3, on paged caches. This library stands on its own: it includes
// nothing but the standard library.
//
//   index()   scores every 128-token block with the index heads, selects the best top_k per query and KV head
//   merge()   selects from what index() found in each share of a cache
//   attend()  softmax attention over the selected blocks, or over everything (dense layers)
//
// The order and the rounding of one query's arithmetic depend on that query alone, never on what else is in
// the batch: whole prompts, chunks and single tokens give the same bits on one instruction set.
#pragma once

#include <cstdint>

namespace msa {

inline constexpr int kBlock = 128;    // tokens of a block: the unit of selection and of paging
inline constexpr int kHeadDim = 128;  // channels of a query, key, value or index head
inline constexpr int kMaxTopK = 16;

enum class Type : uint8_t { kF32, kBF16 };

// CPU instruction sets, weakest first: a machine that has one has all before it. kScalar is the reference
// that judges the others.
enum class Isa : uint8_t { kScalar, kAvx2, kAvx512, kAvx512Bf16, kAmx };

// The best instruction set that works here. AMX is tried by executing it: some hypervisors hide its CPUID
// leaf.
Isa detect_isa();
const char* name_of(Isa isa);

// The caller's threads: run() calls body(arg, worker) for worker 0 and at most once for each other one in
// [0, count), and returns when all are done. Bodies claim their work, so no worker but 0 has to come.
struct Workers {
  int count = 1;
  void* pool = nullptr;
  void (*run)(void* pool, void (*body)(void* arg, int worker),
              void* arg) = nullptr;  // nullptr: the calling thread
};

struct HeadShape {
  int query_heads = 0;
  int kv_heads = 0;  // as many index heads; query head h uses KV head h / (query_heads / kv_heads)
};

struct Selection {
  int top_k = 16;        // [1, kMaxTopK], forced blocks included
  int local_blocks = 1;  // forced, ending at the query's own block
  int init_blocks = 0;   // forced, at the start of the sequence
};

// The metadata of one step, the same for all layers. Query i of request r stands at position
// seq_lens[r] - (queries of r) + i and sees the keys up to and including its own position.
struct Plan {
  int num_requests = 0;
  const int32_t* cu_seqlens_q = nullptr;  // [num_requests + 1] first query row of each request
  const int32_t* seq_lens = nullptr;      // [num_requests] keys in the cache, those of this step included
  const int32_t* block_table = nullptr;   // [num_requests, max_blocks] physical block of each logical block
  int max_blocks = 0;

  int total_queries() const { return num_requests == 0 ? 0 : cu_seqlens_q[num_requests]; }
};

// The blocks of an index may be shared out, and its keys be spread over `count` caches: `share` is physical
// blocks b with b % count == share, and its cache has them as pages b / count.
struct IndexShare {
  int share = 0, count = 1;
};

// A logical block and its score.
struct Candidate {
  float score = 0;
  int32_t block = -1;

  bool operator==(const Candidate&) const = default;
};

// Selected block ids are logical, ascending, unique, -1 padded at the tail; min(top_k, visible blocks) are
// valid. A block's score is the largest q . k of its visible keys; NaN counts as -infinity. Order of
// preference: local blocks, nearest to the query first; init blocks, nearest first; then score descending,
// ties to the lower id.
struct IndexParams {
  Type type = Type::kBF16;
  HeadShape heads;
  Selection selection;
  const void* q = nullptr;        // [total_queries, kv_heads, kHeadDim] after norm and rotary
  const void* k_pages = nullptr;  // [physical blocks, kBlock, kHeadDim]; of a share, its pages
  int32_t* selected = nullptr;    // [total_queries, kv_heads, top_k] out; not of a share
  IndexShare share;
  // [total_queries, kv_heads, top_k] out, instead of `selected`: the best of the share's blocks, best first,
  // block -1 at the tail. Forced blocks are not among them, nor is any block where no score decides.
  Candidate* candidates = nullptr;
};

// What index() would have selected with all keys in one cache, to the bit: the best of all are among the best
// of each share.
struct MergeParams {
  Selection selection;
  int num_shares = 1;
  int index_heads = 0;                    // of the candidates
  int first_head = 0, kv_heads = 0;       // those of them that selections are wanted of
  const Candidate* candidates = nullptr;  // [num_shares, total_queries, index_heads, top_k]
  int32_t* selected = nullptr;            // [total_queries, kv_heads, top_k] out
};

struct AttendParams {
  Type type = Type::kBF16;
  HeadShape heads;
  int top_k = 16;
  float scale = 0.08838834764831845f;  // kHeadDim^-0.5; must be positive
  const void* q = nullptr;             // [total_queries, query_heads, kHeadDim] after norm and rotary
  const void* kv_pages = nullptr;      // [physical blocks, kv_heads, 2 (K, V), kBlock, kHeadDim]
  const int32_t* selected = nullptr;   // [total_queries, kv_heads, top_k]; nullptr: every visible block
  void* out = nullptr;                 // [total_queries, query_heads, kHeadDim] out, in `type`
};

// Bytes of workspace that index() and attend() need for this plan; contents need not be kept between calls.
int64_t index_workspace_bytes(const Plan& plan, const IndexParams& params, Isa isa, const Workers& workers);
int64_t attend_workspace_bytes(const Plan& plan, const AttendParams& params, Isa isa, const Workers& workers);

void index(const Plan& plan, const IndexParams& params, Isa isa, const Workers& workers, void* workspace);
void merge(const Plan& plan, const MergeParams& params, const Workers& workers);
void attend(const Plan& plan, const AttendParams& params, Isa isa, const Workers& workers, void* workspace);

}  // namespace msa
