// SPDX-License-Identifier: Apache-2.0
// TextModel: M3's forward pass over a batch. Engine thread only; weights are borrowed.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/weights.h"
#include "config/config.h"
#include "device/exec.h"
#include "kv/kv_cache.h"
#include "model/batch.h"
#include "model/rotary.h"
#include "ops/ops.h"

namespace sparrow {

// What a run leaves behind for comparison, at the batch's logit rows; steps append.
struct Capture {
  std::vector<std::vector<float>> hidden;  // [layers + 1][rows * hidden] input of a layer; last: final norm
  std::vector<std::vector<int32_t>>
      selected_blocks;  // [layers][rows * kv_heads * top_k]; empty on dense layers
};

class TextModel {
 public:
  TextModel(const ModelConfig& config, const Weights& weights);

  // Shape of the cache that this model needs.
  KvCacheShape cache_shape(int num_blocks) const;

  // Runs the batch, writes its K, V and index-K into `cache`, and returns the logits of its logit rows in
  // `logits` [logit rows, vocabulary] f32.
  void forward(Exec& exec, const Batch& batch, const KvCache& cache, const Tensor& logits,
               Capture* capture = nullptr) const;

 private:
  struct Activations;

  void attention(Exec& exec, const Batch& batch, const KvCache& cache, int layer, Activations& act) const;
  void feed_forward(Exec& exec, int layer, Activations& act) const;
  void project_heads(Exec& exec, const Batch& batch, const KvCache& cache, int layer, Activations& act) const;

  const ModelConfig& config_;
  const Weights& weights_;
  RotaryFrequencies rotary_;
};

}  // namespace sparrow
