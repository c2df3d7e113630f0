// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/cpu_runner.h"

#include <unistd.h>

#include <utility>

namespace sparrow {

Result<std::unique_ptr<CpuRunner>> CpuRunner::create(const ModelConfig& config, const Weights& weights,
                                                     const RunnerOptions& options) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  if (options.isa > ops::detect_cpu_isa())
    return Error{Errc::kInvalidArgument,
                 strf("{} kernels do not run on this machine; its best are {}", ops::name_of(options.isa),
                      ops::name_of(ops::detect_cpu_isa())),
                 "isa"};
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
  return std::unique_ptr<CpuRunner>(new CpuRunner(config, weights, options, std::move(cache)));
}

CpuRunner::CpuRunner(const ModelConfig& config, const Weights& weights, const RunnerOptions& options,
                     KvCache cache)
    : config_(config),
      model_(config, weights),
      cache_(std::move(cache)),
      threads_(options.threads),
      exec_{threads_, scratch_, options.isa} {}

void CpuRunner::forward(const Batch& batch, Capture* capture) {
  const int64_t rows = static_cast<int64_t>(batch.logit_rows.size());
  logits_memory_.resize(rows * config_.vocab_size);
  logits_ = Tensor(logits_memory_.data(), DType::kF32, {rows, config_.vocab_size});
  model_.forward(exec_, batch, cache_, logits_, capture);
}

std::span<const float> CpuRunner::row(int64_t r) const {
  return {logits_.row<float>(r), static_cast<size_t>(logits_.cols())};
}

std::vector<Draw> CpuRunner::draw(std::span<const DrawRequest> draws) {
  std::vector<Draw> drawn;
  drawn.reserve(draws.size());
  for (const DrawRequest& request : draws) {
    SampleRow sample = request.sample;
    sample.logits = row(request.row);
    Result<int32_t> id = sampler_.sample(sample);
    std::optional<TokenLogprobs> logprobs;
    if (id.ok() && request.num_top_logprobs)
      logprobs = logprobs_of(sample.logits, id.value(), *request.num_top_logprobs);
    drawn.push_back({std::move(id), std::move(logprobs)});
  }
  return drawn;
}

std::vector<std::optional<TokenLogprobs>> CpuRunner::score(std::span<const PromptRow> rows) const {
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

EngineInfo CpuRunner::info() const {
  const KvCacheShape& shape = cache_.shape();
  return {.device = "cpu",
          .kernels = ops::name_of(exec_.isa),
          .threads = threads_.size(),
          .cache_bytes = shape.block_bytes() * shape.num_blocks,
          .num_blocks = shape.num_blocks,
          .cache_tokens = int64_t{shape.num_blocks} * kBlockTokens};
}

}  // namespace sparrow
