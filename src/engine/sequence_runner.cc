// SPDX-License-Identifier: Apache-2.0
#include "engine/sequence_runner.h"

#include <algorithm>
#include <utility>

#include "engine/schedule/step_batch.h"

namespace sparrow {

SequenceRunner::SequenceRunner(std::unique_ptr<ModelRunner> runner, std::optional<uint64_t> block_order_seed)
    : runner_(std::move(runner)),
      pool_(runner_->info().num_blocks, block_order_seed),
      features_(runner_->info().feature_tokens, Sequence::kNoEnd) {}

Status SequenceRunner::fill(std::span<const StepSlice> slices) {
  for (const StepSlice& slice : slices)
    if (!slice.sequence->blocks.reserve(slice.first + slice.num_tokens))
      return Error{Errc::kInvalidArgument, strf("the cache of {} blocks is full", pool_.num_blocks())};
  for (const StepSlice& slice : slices) {
    Sequence* const sequence = slice.sequence;
    if (!sequence->needs_features()) continue;
    runner_->encode(features_.plan({&sequence, 1}));
    if (slice.first + slice.num_tokens > sequence->num_ready)
      return Error{Errc::kInvalidArgument,
                   strf("the images of these {} tokens do not fit into the {} that are kept",
                        slice.num_tokens, runner_->info().feature_tokens)};
  }
  fill_batch(slices, batch_, 1, &features_);
  for (const StepSlice& slice : slices) slice.sequence->num_computed = slice.first + slice.num_tokens;
  return Ok{};
}

Status SequenceRunner::run(Sequence& sequence, int num_tokens, std::span<const int32_t> logit_rows,
                           Capture* capture) {
  const StepSlice slice{.sequence = &sequence, .first = sequence.num_computed, .num_tokens = num_tokens};
  SPARROW_TRY(fill({&slice, 1}));
  batch_.logit_rows.assign(logit_rows.begin(), logit_rows.end());
  runner_->run(batch_, capture);
  return Ok{};
}

Status SequenceRunner::run(std::span<const StepSlice> slices) {
  SPARROW_TRY(fill(slices));
  runner_->run(batch_);
  return Ok{};
}

Result<Tensor> SequenceRunner::prefill(Sequence& sequence, int chunk) {
  SPARROW_CHECK_LT(sequence.num_computed, sequence.num_tokens());
  for (;;) {
    const int64_t left = sequence.num_tokens() - sequence.num_computed;
    const auto num_tokens = static_cast<int32_t>(std::min<int64_t>(chunk, left));
    if (num_tokens < left) {
      SPARROW_TRY(run(sequence, num_tokens, {}));
      continue;
    }
    const int32_t last = num_tokens - 1;
    SPARROW_TRY(run(sequence, num_tokens, {&last, 1}));
    return logits();
  }
}

}  // namespace sparrow
