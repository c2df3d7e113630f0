// SPDX-License-Identifier: Apache-2.0
// ModelRunner: runs batches and draws from their logits, on whatever device. Owns that device's cache; which
// block belongs to whom is its caller's business. These calls are all that a device is asked for, in the same
// order wherever it is. Engine thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/tensor.h"
#include "comm/communicator.h"
#include "comm/control_link.h"
#include "engine/cpu/sampler.h"
#include "engine/engine_types.h"
#include "engine/media/feature_store.h"
#include "kv/block_pool.h"
#include "model/text_model.h"

namespace sparrow {

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  virtual const EngineInfo& info() const = 0;

  // Copies whole blocks, in this order.
  virtual void copy_blocks(std::span<const BlockCopy> copies) = 0;

  // Fills rows of the feature memory, of which there are info().feature_tokens: a runner without any is never
  // asked.
  virtual void encode(std::span<const EncodeJob> jobs) { SPARROW_CHECK(jobs.empty()); }

  // Runs a step; it may still be under way when this returns. Its logits have one row for each of the batch's
  // logit rows, until the next call.
  virtual void run(const Batch& batch, Capture* capture = nullptr) = 0;

  // Ids from the last run's logits. Draws of two steps may be under way; finish_draws() waits for the older.
  virtual void start_draws(std::span<const DrawRequest> draws) = 0;
  virtual std::vector<Draw> finish_draws() = 0;
  // Probabilities of the prompt's own ids, from the last run's logits (nullopt: the row holds no numbers).
  virtual std::vector<std::optional<TokenLogprobs>> score(std::span<const PromptRow> rows) = 0;
  // The logits themselves, [logit rows, vocabulary] f32, on the host, until the next run.
  virtual Tensor logits() = 0;

  // Why nothing that was computed here is of any use any more: a rank is gone. Asked before results are
  // handed out. Any thread.
  virtual std::optional<Error> failure() const { return std::nullopt; }
  // A hash of what every rank of a group has computed alike in the last run; 0: nothing.
  virtual uint64_t replica_hash() { return 0; }
  // How long this rank has waited for others since the start, where that is known.
  virtual double peer_wait_seconds() const { return 0; }
  // Of each rank; empty: there is one rank.
  virtual std::span<const RankTimes> rank_times() const { return {}; }
};

// What a rank has of the others. Nothing: it is the only one.
struct RankPeers {
  RankComms comms;  // for a CPU
  // Takes this rank's bytes and gives everybody's, by rank. All ranks call it equally often.
  std::function<Result<std::vector<Bytes>>(std::span<const std::byte>)> exchange;
  // Called when NCCL reports that something is wrong, from a thread of its own; may be empty.
  std::function<void(const Error&)> lost;
};

// The runner for options.device, which is the only thing that tells devices apart. Config and weights are
// borrowed. Of several ranks: that of options.grid. Fails when the cache does not fit into memory, or the
// device cannot run the model.
Result<std::unique_ptr<ModelRunner>> create_runner(const ModelConfig& config, const Weights& weights,
                                                   const EngineOptions& options, const RankPeers& peers = {});

}  // namespace sparrow
