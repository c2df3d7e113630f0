// SPDX-License-Identifier: Apache-2.0
#include "cli/load_model.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/progress.h"

namespace sparrow::cli {
namespace {

void tell(const char* kernels, int threads, size_t weight_bytes, size_t cache_bytes, int64_t cache_tokens) {
  std::fputs(
      strf("{} kernels, {} threads, weights {:.3g} GB, cache {:.3g} GB for {} tokens\n", kernels, threads,
           static_cast<double>(weight_bytes) / 1e9, static_cast<double>(cache_bytes) / 1e9, cache_tokens)
          .c_str(),
      stderr);
}

int64_t default_cache_tokens(const Checkpoint& checkpoint) {
  const auto memory =
      static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t block_bytes =
      TextModel(checkpoint.config(), checkpoint.weights()).cache_shape(1).block_bytes();
  const auto blocks = static_cast<int64_t>(memory / 4 / block_bytes);
  return std::clamp<int64_t>(blocks * kBlockTokens, kBlockTokens, kDefaultCacheTokens);
}

}  // namespace

Result<Checkpoint> load_checkpoint(const std::filesystem::path& dir) {
  ProgressBar bar("loading " + dir.filename().string(), ProgressBar::Unit::kBytes);
  Checkpoint checkpoint = SPARROW_TRY(Checkpoint::open(dir, {.progress = bar.callback()}));
  bar.finish();
  return checkpoint;
}

Result<std::unique_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path& dir,
                                                  const ModelConfig& config) {
  if (!std::filesystem::exists(dir / "tokenizer.json")) return std::unique_ptr<Tokenizer>();
  auto tokenizer = std::make_unique<Tokenizer>(SPARROW_TRY(Tokenizer::load(dir)));
  tokenizer->reserve_ids(config.vocab_size);
  return tokenizer;
}

Result<std::unique_ptr<ModelRunner>> start_runner(const ModelConfig& config, const Checkpoint& checkpoint,
                                                  int64_t cache_tokens, int threads,
                                                  std::optional<uint64_t> block_order_seed) {
  RunnerOptions options{.cache_tokens = cache_tokens, .block_order_seed = block_order_seed};
  if (threads > 0) options.threads = threads;
  auto runner = SPARROW_TRY(ModelRunner::create(config, checkpoint.weights(), options));
  tell(ops::name_of(runner->isa()), runner->num_threads(), checkpoint.weight_bytes(), runner->cache_bytes(),
       cache_tokens);
  return runner;
}

Result<std::unique_ptr<Engine>> start_engine(const Checkpoint& checkpoint, EngineOptions options) {
  if (options.cache_tokens == 0) options.cache_tokens = default_cache_tokens(checkpoint);
  auto engine = SPARROW_TRY(Engine::create(checkpoint.config(), checkpoint.weights(), options));
  const EngineInfo& info = engine->info();
  tell(info.kernels.c_str(), info.threads, checkpoint.weight_bytes(), info.cache_bytes, info.cache_tokens);
  return engine;
}

}  // namespace sparrow::cli
