// SPDX-License-Identifier: Apache-2.0
// SequenceRunner: sequences on a ModelRunner without a scheduler, as `trace` and the tests of the model run
// them: takes blocks as they are needed, and counts what is computed. One thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "engine/model_runner.h"
#include "engine/schedule/step_plan.h"
#include "kv/block_pool.h"

namespace sparrow {

class SequenceRunner {
 public:
  // `block_order_seed`: hand blocks out in this shuffled order.
  explicit SequenceRunner(std::unique_ptr<ModelRunner> runner,
                          std::optional<uint64_t> block_order_seed = std::nullopt);

  // An empty one, to be filled with ids and media; it must not outlive the runner.
  Sequence new_sequence() { return {.ids = {}, .blocks = BlockTable(pool_)}; }

  // Runs the next tokens of a sequence; `logit_rows` are those of them (0 = first) whose logits are wanted.
  // Error: the cache is full.
  Status run(Sequence& sequence, int num_tokens, std::span<const int32_t> logit_rows,
             Capture* capture = nullptr);
  // Runs the slices as one batch.
  Status run(std::span<const StepSlice> slices);
  // Runs all tokens of a sequence in chunks of at most `chunk`; returns the logits of its last token.
  Result<Tensor> prefill(Sequence& sequence, int chunk);

  Tensor logits() { return runner_->logits(); }

 private:
  // Makes the batch of the slices, which then count as computed.
  Status fill(std::span<const StepSlice> slices);

  std::unique_ptr<ModelRunner> runner_;
  BlockPool pool_;
  FeatureStore features_;
  Batch batch_;
};

}  // namespace sparrow
