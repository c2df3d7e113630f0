// SPDX-License-Identifier: Apache-2.0
#include "engine/model_runner.h"

#include <algorithm>

#include "engine/cpu/cpu_runner.h"
#include "engine/cuda_runner.h"

namespace sparrow {
namespace {

// Appends one slice to the batch; its blocks are reserved already.
void append(Batch& batch, const SequenceSlice& slice) {
  const Sequence& sequence = *slice.sequence;
  const int first_row = batch.num_tokens();
  if (slice.drawn_by >= 0) batch.drawn_by.resize(batch.ids.size(), -1);
  for (int i = 0; i < slice.num_tokens; ++i) {
    const int64_t position = sequence.num_computed + i;
    if (slice.drawn_by >= 0) batch.drawn_by.push_back(slice.drawn_by);
    batch.ids.push_back(slice.drawn_by >= 0 ? 0 : sequence.ids[position]);
    batch.positions.push_back(static_cast<int32_t>(position));
    batch.slots.push_back(sequence.blocks.slot(position));
  }
  for (const int32_t offset : slice.logit_offsets) batch.logit_rows.push_back(first_row + offset);
  batch.cu_seqlens_q.push_back(batch.num_tokens());
  batch.seq_lens.push_back(static_cast<int32_t>(sequence.num_computed + slice.num_tokens));
}

void clear(Batch& batch) {
  batch.ids.clear();
  batch.positions.clear();
  batch.slots.clear();
  batch.cu_seqlens_q.assign(1, 0);
  batch.seq_lens.clear();
  batch.logit_rows.clear();
  batch.drawn_by.clear();
  batch.max_blocks = 0;
}

void fill_block_table(Batch& batch, std::span<const SequenceSlice> slices) {
  for (const SequenceSlice& slice : slices)
    batch.max_blocks = std::max(batch.max_blocks, static_cast<int>(slice.sequence->blocks.blocks().size()));
  batch.block_table.assign(slices.size() * batch.max_blocks, -1);
  for (size_t s = 0; s < slices.size(); ++s) {
    const std::span<const BlockId> blocks = slices[s].sequence->blocks.blocks();
    std::copy(blocks.begin(), blocks.end(),
              batch.block_table.begin() + static_cast<int64_t>(s) * batch.max_blocks);
  }
}

}  // namespace

Result<std::unique_ptr<ModelRunner>> ModelRunner::create(const ModelConfig& config, const Weights& weights,
                                                         const RunnerOptions& options) {
  auto runner = std::unique_ptr<ModelRunner>(new ModelRunner());
  if (options.device == Device::kCuda) {
    runner->cuda_ = SPARROW_TRY(CudaRunner::create(config, weights, options));
    runner->info_ = runner->cuda_->info();
  } else {
    runner->cpu_ = SPARROW_TRY(CpuRunner::create(config, weights, options));
    runner->info_ = runner->cpu_->info();
  }
  runner->pool_ = std::make_unique<BlockPool>(runner->info_.num_blocks, options.block_order_seed);
  return runner;
}

ModelRunner::~ModelRunner() = default;

void ModelRunner::copy_blocks(std::span<const BlockCopy> copies) {
  if (cuda_) return cuda_->copy_blocks(copies);
  cpu_->cache().copy_blocks(copies);
}

Status ModelRunner::run(std::span<const SequenceSlice> slices, Capture* capture) {
  clear(batch_);
  for (const SequenceSlice& slice : slices) {
    Sequence& sequence = *slice.sequence;
    SPARROW_CHECK_LE(sequence.num_computed + slice.num_tokens,
                     static_cast<int64_t>(sequence.ids.size()) + (slice.drawn_by >= 0 ? 1 : 0));
    if (!sequence.blocks.reserve(sequence.num_computed + slice.num_tokens))
      return Error{Errc::kInvalidArgument, strf("the cache of {} blocks is full", pool_->num_blocks())};
    append(batch_, slice);
  }
  fill_block_table(batch_, slices);
  if (cuda_) {
    cuda_->forward(batch_, capture);
  } else {
    for (size_t row = 0; row < batch_.drawn_by.size(); ++row)
      if (const int draw = batch_.drawn_by[row]; draw >= 0) batch_.ids[row] = drawn_ids_[draw];
    cpu_->forward(batch_, capture);
  }
  for (const SequenceSlice& slice : slices) slice.sequence->num_computed += slice.num_tokens;
  return Ok{};
}

void ModelRunner::start_draws(std::span<const DrawRequest> draws) {
  if (cuda_) return cuda_->start_draws(draws);
  draws_.push_back(cpu_->draw(draws));
  drawn_ids_.clear();
  for (const Draw& draw : draws_.back()) drawn_ids_.push_back(draw.id.ok() ? draw.id.value() : 0);
}

std::vector<Draw> ModelRunner::finish_draws() {
  if (cuda_) return cuda_->finish_draws();
  std::vector<Draw> draws = std::move(draws_.front());
  draws_.pop_front();
  return draws;
}

std::vector<std::optional<TokenLogprobs>> ModelRunner::score(std::span<const PromptRow> rows) {
  return cuda_ ? cuda_->score(rows) : cpu_->score(rows);
}

Tensor ModelRunner::logits() {
  return cuda_ ? cuda_->logits() : cpu_->logits();
}

Result<StepTimes> ModelRunner::profile(const Batch& batch, int repeats) {
  if (!cuda_) return Error{Errc::kUnsupported, "steps are measured on a GPU only: use --device cuda"};
  return cuda_->profile(batch, repeats);
}

void ModelRunner::fill_cache(uint64_t seed) {
  if (cuda_) cuda_->fill_cache(seed);
}

const KvCache& ModelRunner::cache() const {
  SPARROW_CHECK(cpu_ != nullptr);
  return cpu_->cache();
}

Result<Tensor> ModelRunner::prefill(Sequence& sequence, int chunk) {
  const int64_t total = static_cast<int64_t>(sequence.ids.size());
  SPARROW_CHECK_LT(sequence.num_computed, total);
  for (;;) {
    SequenceSlice slice{
        .sequence = &sequence,
        .num_tokens = static_cast<int>(std::min<int64_t>(chunk, total - sequence.num_computed)),
        .logit_offsets = {}};
    const bool last = sequence.num_computed + slice.num_tokens == total;
    if (last) slice.logit_offsets = {slice.num_tokens - 1};
    SPARROW_TRY(run({&slice, 1}));
    if (last) return logits();
  }
}

}  // namespace sparrow
