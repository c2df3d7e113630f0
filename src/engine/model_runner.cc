// SPDX-License-Identifier: Apache-2.0
#include "engine/model_runner.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace sparrow {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

// Appends one slice to the batch; its blocks are reserved already.
void append(Batch& batch, const SequenceSlice& slice) {
  const Sequence& sequence = *slice.sequence;
  const int first_row = batch.num_tokens();
  for (int i = 0; i < slice.num_tokens; ++i) {
    const int64_t position = sequence.num_computed + i;
    batch.ids.push_back(sequence.ids[position]);
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
  const int64_t num_blocks = blocks_for_tokens(options.cache_tokens);
  const KvCacheShape shape = TextModel(config, weights).cache_shape(static_cast<int>(num_blocks));
  const double bytes = static_cast<double>(shape.block_bytes()) * static_cast<double>(num_blocks);
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (bytes > memory)
    return Error{
        Errc::kInvalidArgument,
        strf("a cache of {} tokens needs {:.1f} GiB and this machine has {:.1f} GiB: use a shorter context",
             options.cache_tokens, bytes / kGiB, memory / kGiB)};
  KvCache cache = SPARROW_TRY(KvCache::create(shape));
  return std::unique_ptr<ModelRunner>(new ModelRunner(config, weights, options, std::move(cache)));
}

ModelRunner::ModelRunner(const ModelConfig& config, const Weights& weights, const RunnerOptions& options,
                         KvCache cache)
    : config_(config),
      model_(config, weights),
      cache_(std::move(cache)),
      pool_(cache_.shape().num_blocks, options.block_order_seed),
      threads_(options.threads),
      exec_{threads_, scratch_, options.isa} {}

Result<Tensor> ModelRunner::run(std::span<const SequenceSlice> slices, Capture* capture) {
  clear(batch_);
  for (const SequenceSlice& slice : slices) {
    Sequence& sequence = *slice.sequence;
    SPARROW_CHECK_LE(sequence.num_computed + slice.num_tokens, static_cast<int64_t>(sequence.ids.size()));
    if (!sequence.blocks.reserve(sequence.num_computed + slice.num_tokens))
      return Error{Errc::kInvalidArgument, strf("the cache of {} blocks is full", pool_.num_blocks())};
    append(batch_, slice);
  }
  fill_block_table(batch_, slices);
  const int64_t rows = static_cast<int64_t>(batch_.logit_rows.size());
  logits_.resize(rows * config_.vocab_size);
  const Tensor logits(logits_.data(), DType::kF32, {rows, config_.vocab_size});
  model_.forward(exec_, batch_, cache_, logits, capture);
  for (const SequenceSlice& slice : slices) slice.sequence->num_computed += slice.num_tokens;
  return logits;
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
    Tensor logits = SPARROW_TRY(run({&slice, 1}));
    if (last) return logits;
  }
}

}  // namespace sparrow
