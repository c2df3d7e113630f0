// SPDX-License-Identifier: Apache-2.0
// What every command does before its own work: open a checkpoint and start a runner, telling the user about
// it.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "base/result.h"
#include "engine/model_runner.h"
#include "model/checkpoint.h"

namespace sparrow::cli {

Result<Checkpoint> load_checkpoint(const std::filesystem::path& dir);

// `config` is the checkpoint's, perhaps changed. `threads` 0: all. Both must outlive the runner.
Result<std::unique_ptr<ModelRunner>> start_runner(const ModelConfig& config, const Checkpoint& checkpoint,
                                                  int64_t cache_tokens, int threads,
                                                  std::optional<uint64_t> block_order_seed = std::nullopt);

// ModelRunner::prefill with a progress bar for prompts that take a while.
Result<Tensor> prefill_with_progress(ModelRunner& runner, Sequence& sequence, int chunk);

}  // namespace sparrow::cli
