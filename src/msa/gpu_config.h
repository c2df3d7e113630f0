// SPDX-License-Identifier: Apache-2.0
// What a plan of gpu.h is told: its maxima and shapes at its creation, and each step. And the memory that
// follows from them. Host only: programs without CUDA count with it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "msa/msa.h"

namespace msa::gpu {

enum class Code : int {
  kOk = 0,
  kInvalid = 1,      // an argument contradicts itself or the plan
  kUnsupported = 2,  // a shape or type that no kernel computes
  kCapacity = 3,     // a step larger than the plan's maxima
  kMemory = 4,
  kCuda = 5,
};

// The message names the field and its value; it is empty when all is well.
struct [[nodiscard]] Status {
  Code code = Code::kOk;
  std::string message;
  bool ok() const { return code == Code::kOk; }
};

enum class CacheType : uint8_t { kBF16, kE4M3 };

struct PlanConfig {
  HeadShape heads;      // of this rank: 1, 2 or 4 KV heads, 4, 8 or 16 query heads for each
  Selection selection;  // top_k 1 to 16
  CacheType kv_type = CacheType::kBF16, index_type = CacheType::kBF16;
  int max_requests = 0, max_queries = 0;  // of a step, both parts together
  int max_blocks = 0;                     // columns of a block table: the longest context
  // Rotary channels turn in pairs (i, i + rotary_dim / 2): 16, 32, 64 or 128; 0: no store()
  int rotary_dim = 0;
  std::span<const float> inv_freq;  // [rotary_dim / 2] on the host; copied
  float attention_factor = 1;       // multiplies cos and sin
  // A query's bits depend on its own request and position alone, not on what else a step holds or how a
  // prompt was cut: one kernel for all step sizes, no context shared among CTAs. Slower.
  bool batch_invariant = false;
  // Several ranks, each with all index keys, may share the scoring of blocks: this one's share, and how many
  // index heads they have together, its own first. In steps that say so.
  IndexShare index_share;
  int index_heads = 0;  // 1 to 4; not looked at where index_share.count is 1
};

// Requests that are computed alike. Query i of request r stands at seq_lens[r] - (queries of r) + i.
struct Part {
  int num_requests = 0;
  int total_queries = 0;                  // rows; those past cu_seqlens_q[num_requests] are padding
  int max_queries = 0;                    // of one request
  const int32_t* cu_seqlens_q = nullptr;  // [num_requests + 1]; nullptr: max_queries for each request
  const int32_t* seq_lens = nullptr;      // [num_requests] keys, this step's included; 0: a padding request
  const int32_t* block_table = nullptr;   // [num_requests, max_blocks]
  int max_blocks = 0;
};

// Rows of tensors: those of `decode` first. Either part may be empty.
struct Step {
  Part decode;                         // uniform: cu_seqlens_q is nullptr, 1 to 16 queries for each request
  Part prefill;                        // ragged: cu_seqlens_q is given
  const int32_t* positions = nullptr;  // [rows] of each token; store() needs them
  bool shares_index = false;           // candidates() and select() take the place of index()
};

// Bytes of device memory that a plan of this config needs on a Hopper card with so many multiprocessors.
Status workspace_bytes(const PlanConfig& config, int num_sms, int64_t* bytes);

}  // namespace msa::gpu
