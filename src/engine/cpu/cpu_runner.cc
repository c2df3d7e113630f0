// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/cpu_runner.h"

#include <unistd.h>

#include <utility>

namespace sparrow {

Result<std::unique_ptr<CpuRunner>> CpuRunner::create(const ModelConfig& config, const Weights& weights,
                                                     int64_t cache_tokens, const CpuOptions& options) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  if (options.isa && *options.isa > ops::detect_cpu_isa())
    return Error{Errc::kInvalidArgument,
                 strf("{} kernels do not run on this machine; its best are {}", ops::name_of(*options.isa),
                      ops::name_of(ops::detect_cpu_isa())),
                 "isa"};
  if (options.threads < 0)
    return Error{Errc::kInvalidArgument, strf("threads must be >= 0, got {}", options.threads), "threads"};
  if (cache_tokens < 1)
    return Error{Errc::kInvalidArgument, strf("cache_tokens must be >= 1, got {}", cache_tokens),
                 "cache_tokens"};
  const int64_t num_blocks = blocks_for_tokens(cache_tokens);
  const KvCacheShape shape = TextModel(config, weights).cache_shape(static_cast<int>(num_blocks));
  const double bytes = static_cast<double>(shape.block_bytes()) * static_cast<double>(num_blocks);
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (bytes > memory)
    return Error{
        Errc::kInvalidArgument,
        strf("a cache of {} tokens needs {:.1f} GiB and this machine has {:.1f} GiB: use a shorter context",
             cache_tokens, bytes / kGiB, memory / kGiB)};
  KvCache cache = SPARROW_TRY(KvCache::create(shape));
  return std::unique_ptr<CpuRunner>(new CpuRunner(config, weights, options, std::move(cache)));
}

CpuRunner::CpuRunner(const ModelConfig& config, const Weights& weights, const CpuOptions& options,
                     KvCache cache)
    : config_(config),
      model_(config, weights),
      cache_(std::move(cache)),
      threads_(options.threads > 0 ? options.threads : ThreadPool::default_size()),
      exec_{threads_, scratch_, options.isa.value_or(ops::detect_cpu_isa())} {
  const KvCacheShape& shape = cache_.shape();
  info_ = {.device = "cpu",
           .kernels = ops::name_of(exec_.isa),
           .threads = threads_.size(),
           .kv_dtype = shape.dtype,
           .index_dtype = shape.index_dtype,
           .cache_bytes = shape.block_bytes() * shape.num_blocks,
           .num_blocks = shape.num_blocks,
           .cache_tokens = int64_t{shape.num_blocks} * kBlockTokens,
           .bound_steps = true};
}

void CpuRunner::run(const Batch& batch, Capture* capture) {
  const auto rows = static_cast<int64_t>(batch.logit_rows.size());
  logits_memory_.resize(rows * config_.vocab_size);
  logits_ = Tensor(logits_memory_.data(), DType::kF32, {rows, config_.vocab_size});
  if (batch.drawn_by.empty()) return model_.forward(exec_, batch, cache_, logits_, capture);
  fed_ = batch;
  for (size_t row = 0; row < batch.drawn_by.size(); ++row)
    if (const int draw = batch.drawn_by[row]; draw >= 0) fed_.ids[row] = drawn_ids_[draw];
  model_.forward(exec_, fed_, cache_, logits_, capture);
}

std::span<const float> CpuRunner::row(int64_t r) const {
  return {logits_.row<float>(r), static_cast<size_t>(logits_.cols())};
}

Draw CpuRunner::draw(const DrawRequest& request) {
  SampleRow sample = request.sample;
  sample.logits = row(request.row);
  Result<int32_t> id = sampler_.sample(sample);
  std::optional<TokenLogprobs> logprobs;
  if (id.ok() && request.num_top_logprobs)
    logprobs = logprobs_of(sample.logits, id.value(), *request.num_top_logprobs);
  return {std::move(id), std::move(logprobs)};
}

void CpuRunner::start_draws(std::span<const DrawRequest> draws) {
  std::vector<Draw>& drawn = draws_.emplace_back();
  drawn.reserve(draws.size());
  drawn_ids_.clear();
  for (const DrawRequest& request : draws) {
    drawn.push_back(draw(request));
    drawn_ids_.push_back(drawn.back().id.ok() ? drawn.back().id.value() : 0);
  }
}

std::vector<Draw> CpuRunner::finish_draws() {
  std::vector<Draw> drawn = std::move(draws_.front());
  draws_.pop_front();
  return drawn;
}

std::vector<std::optional<TokenLogprobs>> CpuRunner::score(std::span<const PromptRow> rows) {
  std::vector<std::optional<TokenLogprobs>> scores;
  scores.reserve(rows.size());
  for (const PromptRow& wanted : rows) {
    const std::span<const float> logits = row(wanted.row);
    if (argmax(logits))
      scores.push_back(logprobs_of(logits, wanted.id, wanted.num_top));
    else
      scores.push_back(std::nullopt);
  }
  return scores;
}

}  // namespace sparrow
