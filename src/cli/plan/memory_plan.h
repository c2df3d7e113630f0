// SPDX-License-Identifier: Apache-2.0
// MemoryPlan: whether a model fits, and what is left for its cache, from the configuration alone. Plain
// arithmetic; `sparrow plan` shows it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/config.h"
#include "model/ledger.h"
#include "model/workspace.h"

namespace sparrow::cli {

struct MemoryPlanOptions {
  int gpus = 1;               // ranks
  std::optional<Grid> grid;   // how they share the model; default: the fastest for one request
  int num_nodes = 1;          // that they are on
  bool peer_memory = true;    // GPUs of a node exchange over each other's memory
  std::string gpu = "h200";   // its kind, a size such as 96G, or "cpu"
  int64_t max_model_len = 0;  // 0: what the model was made for and the cache can hold
  std::string kv_cache_dtype = "auto", index_cache_dtype = "auto", activation_dtype = "auto";
  bool batch_invariant = false;
  double gpu_memory_utilization = 0.9;
  bool vision = false;  // on a GPU: the tower, its buffers and the features that are kept
  int max_step_sequences = 256;
  int max_step_tokens = 0;                // 0: what `serve` takes there
  std::optional<int64_t> kv_cache_bytes;  // the cache's size, instead of what is left
  int64_t machine_bytes = 0;              // memory of this machine, for "cpu"
  int threads = 1;                        // for "cpu"
  CpuIsa isa = CpuIsa::kAvx2;             // likewise
};

// One rank; all of them hold as much.
struct MemoryPlan {
  bool is_cpu = false;
  bool runs_kernels = true;
  std::string device;
  Grid grid;
  int64_t memory_bytes = 0, budget_bytes = 0;  // in all, and as much of it as may be used
  std::vector<LedgerRow> weights;
  int64_t weight_bytes = 0;
  int64_t stored_bytes = 0;  // of the same weights in the checkpoint
  Workspace workspace;
  Workspace driver;          // what is left to a GPU's driver: not ours, not exact
  int64_t pinned_bytes = 0;  // page-locked memory of the host
  DType kv_dtype = DType::kBF16, index_dtype = DType::kBF16;
  bool rounds_tokens = false;  // --activation-dtype fp8
  int64_t kv_token_bytes = 0, index_token_bytes = 0;
  int64_t num_blocks = 0;     // on each rank, for the requests of its group
  int64_t max_model_len = 0;  // that was asked for, or the model's
  bool is_length_given = false;

  int64_t block_bytes() const { return (kv_token_bytes + index_token_bytes) * 128; }
  int64_t cache_bytes() const { return block_bytes() * num_blocks; }
  int64_t cache_tokens() const { return num_blocks * 128; }  // of a group's requests
  int64_t fixed_bytes() const { return weight_bytes + workspace.bytes + driver.bytes; }
  int64_t used_bytes() const { return fixed_bytes() + cache_bytes(); }
  // Tokens of the longest request that can be served.
  int64_t longest_request() const { return std::min(max_model_len, cache_tokens()); }
  int64_t full_requests() const;  // of max_model_len tokens, at the same time, in all groups

  bool fits = true;
  std::vector<std::string> advice;  // what does not fit, and what to change; a sentence each
};

// "1,048,576"
std::string grouped(int64_t value);

// The grid of the options. Error: the model cannot be cut that way.
Result<Grid> find_grid(const ModelConfig& config, const MemoryPlanOptions& options);

// Error: a flag makes no sense, or the model cannot be cut that way.
Result<MemoryPlan> make_memory_plan(const ModelConfig& config, const MemoryPlanOptions& options);

}  // namespace sparrow::cli
