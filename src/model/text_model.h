// SPDX-License-Identifier: Apache-2.0
// TextModel: M3's forward pass over a batch, on one rank of a grid: heads, channels and vocabulary are those
// of the rank, and the residual stream is the same on all. Engine thread only; weights are borrowed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/weights.h"
#include "comm/communicator.h"
#include "comm/grid.h"
#include "config/config.h"
#include "device/exec.h"
#include "kv/kv_cache.h"
#include "model/batch.h"
#include "model/cpu/rank_weights.h"
#include "model/rotary.h"
#include "ops/ops.h"

namespace sparrow {

// What a run leaves behind for comparison, at the batch's logit rows; steps append.
struct Capture {
  std::vector<std::vector<float>> hidden;  // [layers + 1][rows * hidden] input of a layer; last: final norm
  std::vector<std::vector<int32_t>>
      selected_blocks;  // [layers][rows * KV heads of the rank * top_k]; empty on dense layers
};

class TextModel {
 public:
  // `weights` are those of all ranks. A grid of one rank needs no communicators.
  TextModel(const ModelConfig& config, const Weights& weights, const Grid& grid = {}, RankComms comms = {});

  // Shape of the cache that this rank needs.
  KvCacheShape cache_shape(int num_blocks) const;

  // Runs the batch, writes its K, V and index-K into `cache`, and returns the logits of its logit rows in
  // `logits` [logit rows, vocabulary] f32, on the first rank of a group; the others' is not looked at. Every
  // rank makes the same calls. `group_tokens` are the rows of each group of the grid, whose experts are run
  // together; of one group, it may be left out. A group that has none takes part all the same.
  //
  // Rows that the batch takes from elsewhere are rows of `features`, of the model's type.
  //
  // Returns a hash of what all ranks of a group must have computed alike; 0 where there is only one.
  uint64_t forward(Exec& exec, const Batch& batch, const KvCache& cache, const Tensor& logits,
                   std::span<const int64_t> group_tokens = {}, Capture* capture = nullptr,
                   const Tensor& features = {}) const;

 private:
  struct Activations;

  void attention(Exec& exec, const Batch& batch, const KvCache& cache, int layer, Activations& act) const;
  void feed_forward(Exec& exec, int layer, std::span<const int64_t> group_tokens, Activations& act) const;
  void select_blocks(Exec& exec, const KvCache& cache, int layer, Activations& act) const;
  void project_heads(Exec& exec, const Batch& batch, const KvCache& cache, int layer, Activations& act) const;
  void add_up(Exec& exec, Communicator* comm, const Tensor& partial, const Activations& act) const;
  void project_vocabulary(Exec& exec, const Tensor& rows, const Tensor& logits) const;

  const ModelConfig& config_;
  const Grid grid_;
  const RankComms comms_;
  ExpandedMatrices expanded_;   // that weights_ views
  const Weights weights_;       // of this rank
  const SumParts parts_;        // likewise
  const msa::HeadShape heads_;  // likewise
  RotaryFrequencies rotary_;
};

}  // namespace sparrow
