// SPDX-License-Identifier: Apache-2.0
#include "cli/load_model.h"

#include <cstdio>

#include "base/progress.h"

namespace sparrow::cli {

Result<Checkpoint> load_checkpoint(const std::filesystem::path& dir) {
  ProgressBar bar("loading " + dir.filename().string(), ProgressBar::Unit::kBytes);
  Checkpoint checkpoint = SPARROW_TRY(Checkpoint::open(dir, {.progress = bar.callback()}));
  bar.finish();
  return checkpoint;
}

Result<std::unique_ptr<ModelRunner>> start_runner(const ModelConfig& config, const Checkpoint& checkpoint,
                                                  int64_t cache_tokens, int threads,
                                                  std::optional<uint64_t> block_order_seed) {
  RunnerOptions options{.cache_tokens = cache_tokens, .block_order_seed = block_order_seed};
  if (threads > 0) options.threads = threads;
  auto runner = SPARROW_TRY(ModelRunner::create(config, checkpoint.weights(), options));
  std::fputs(strf("{} kernels, {} threads, weights {:.3g} GB, cache {:.3g} GB for {} tokens\n",
                  ops::name_of(runner->isa()), runner->num_threads(),
                  static_cast<double>(checkpoint.weight_bytes()) / 1e9,
                  static_cast<double>(runner->cache_bytes()) / 1e9, cache_tokens)
                 .c_str(),
             stderr);
  return runner;
}

Result<Tensor> prefill_with_progress(ModelRunner& runner, Sequence& sequence, int chunk) {
  ProgressBar bar("prefill", ProgressBar::Unit::kItems);
  return runner.prefill(sequence, chunk, bar.callback());
}

}  // namespace sparrow::cli
