// SPDX-License-Identifier: Apache-2.0
// What an engine is told, what it runs with, and what it has done. Plain data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/tensor.h"
#include "device/exec.h"
#include "engine/schedule/scheduler_types.h"
#include "engine/schedule/wait_reason.h"
#include "kv/cache_event.h"
#include "model/exchange/exchange_way.h"
#include "model/ledger.h"
#include "model/load/file_walk.h"

namespace sparrow {

// What a CPU alone is told.
struct CpuOptions {
  int threads = 0;                 // 0: all the process may use
  std::optional<CpuIsa> isa;       // default: the best that works here
  int64_t feature_tokens = 16384;  // of images that are kept at a time, where the model has vision
};

// What a GPU alone is told.
struct GpuOptions {
  int ordinal = 0;                   // which GPU, as CUDA counts them
  DType kv_dtype = DType::kBF16;     // of K and V in the cache: bf16 or e4m3
  DType index_dtype = DType::kBF16;  // of its index keys, likewise
  double memory_utilization = 0.9;   // of the device's memory, for all there is
  bool share = false;                // other ranks may run on the same GPU; slower, for tests
  ExchangeWay exchange;              // how ranks exchange rows
  bool graphs = true;                // replay decode steps from CUDA graphs
  bool batch_invariant = false;      // outputs depend, to the bit, on their request alone; slower
  int64_t feature_tokens = 8192;     // of images that are kept at a time, where the model has vision
  bool e4m3_tokens = false;          // prompts' rows are rounded to e4m3, on MXFP8 weights: lossy
  // Cached tokens of a step from which on a group's ranks share the scan of its index: below, the exchange
  // takes longer than it saves. A prompt's count three times. Measured: docs/msa-index.md.
  int64_t shared_index_tokens = 384 * 1024;
  std::optional<uint64_t> dummy_seed;  // random weights made on the device; the checkpoint's are not read
  ProgressFn progress;                 // bytes of weights on the device, bytes in all
  LoadOrder load_order;                // of the checkpoint's files
};

struct EngineOptions {
  Device device = Device::kCpu;
  Grid grid;                 // the ranks that run the model together, and which this one is
  int64_t cache_tokens = 0;  // that the cache holds, rounded up to blocks; 0: what fits (GPU only)
  CpuOptions cpu;
  GpuOptions gpu;
  int64_t max_model_tokens = 0;     // of a prompt and its output together; 0: what the model was made for
  int max_step_tokens = 512;        // run in one step, by each data-parallel group
  int max_step_sequences = 256;     // running at the same time, likewise
  int64_t max_step_patches = 4096;  // of images that a rank encodes before a step, but one image at least
  std::optional<bool> bound_steps;  // fewer tokens where a step would take too long; default: EngineInfo's
  bool prefix_caching = true;
  int max_queued_requests = 1024;  // that have not started; more are refused with Errc::kBusy
  int events_per_output = 64;      // a TokenStream holds before its request pauses
  std::optional<bool> run_ahead;   // start a step before the ids of the last are known; default: EngineInfo's
  std::optional<uint64_t> block_order_seed;  // hand blocks out in this shuffled order
  CacheEventSink cache_events;               // told after each step, on the engine's thread; none: not wanted
};

struct EngineInfo {
  std::string device;   // "cpu", or the GPU's name
  std::string kernels;  // instruction set
  int threads = 0;
  int num_ranks = 1;
  size_t weight_bytes = 0;           // in the device's memory; 0: used where the checkpoint is mapped
  size_t workspace_bytes = 0;        // 0: not known ahead
  std::vector<LedgerRow> workspace;  // the same by its parts, as `sparrow plan` names them
  size_t device_bytes = 0;           // of a GPU in all
  DType kv_dtype = DType::kBF16, index_dtype = DType::kBF16;  // of the cache
  size_t cache_bytes = 0;
  int num_blocks = 0;          // of each data-parallel group
  int64_t cache_tokens = 0;    // in them
  int64_t feature_tokens = 0;  // of images that are kept at a time; 0: it takes none
  bool run_ahead = false;      // a step that starts before the ids of the last are known gains time here
  bool bound_steps = false;    // steps can take so long here that people wait for them
  std::vector<std::string> warnings;  // a line each
};

// A sequence that does not run, and why.
struct WaitingSequence {
  uint64_t request = 0;        // TokenStream::request_id()
  int output = 0;              // of the request; the first choice stands for all that have not begun
  int64_t queue_position = 0;  // 0: first
  std::string reason;
  int64_t blocks_missing = 0;  // where it waits for blocks
};

// What one of several ranks has spent.
struct RankTimes {
  double step_seconds = 0;       // in the last step
  double peer_wait_seconds = 0;  // waiting for other ranks, since the start; on a CPU alone
};

// Steps are counted by their tokens: as many as one of these, or less.
inline constexpr std::array<int, 13> kStepTokenBounds = {1,   8,    16,   32,   64,   128,  256,
                                                         512, 1024, 2048, 4096, 8192, 16384};

struct EngineStats {
  // Now.
  int running_sequences = 0, waiting_sequences = 0;
  std::array<int, kNumWaitReasons> waiting_by_reason{};  // of the waiting ones
  int live_requests = 0;                                 // accepted, not ended
  int queued_requests = 0;                               // those of them of which nothing has run yet
  int blocks_total = 0, blocks_in_use = 0, blocks_cached = 0, blocks_free = 0;
  std::vector<GroupStats> groups;  // of data-parallel groups; what their totals say here, by group

  // Since the start.
  int64_t requests = 0;          // accepted
  int64_t prompt_tokens = 0;     // of these
  int64_t computed_tokens = 0;   // run through the model: prompts, outputs, and again after a preemption
  int64_t generated_tokens = 0;  // drawn
  int64_t prefix_tokens_queried = 0, prefix_tokens_hit = 0;
  int64_t preemptions = 0;
  int64_t encoded_segments = 0, encoded_patches = 0;  // images, and runs of clips; what they had
  double encode_seconds = 0;
  int64_t steps = 0;
  std::array<int64_t, kStepTokenBounds.size() + 1> steps_by_tokens{};  // the last: more than all bounds
  int64_t step_sequences = 0;                                          // summed over the steps
  int largest_step_sequences = 0, largest_step_tokens = 0;
  double step_seconds = 0, last_step_seconds = 0;
  std::vector<RankTimes> rank_times;  // [rank]; empty: there is one rank
  int64_t stopped = 0, reached_length = 0, cancelled = 0, expired = 0, failed = 0;  // outputs, by their end
};

}  // namespace sparrow
