// SPDX-License-Identifier: Apache-2.0
// What every command does before its own work: open a checkpoint and start a runner or an engine, telling the
// user about it.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/model_runner.h"
#include "model/checkpoint.h"
#include "text/tokenizer/tokenizer.h"

namespace sparrow::cli {

Result<Checkpoint> load_checkpoint(const std::filesystem::path& dir);

// The tokenizer of a model's folder, knowing all ids of the model; null where the folder has none.
Result<std::unique_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path& dir,
                                                  const ModelConfig& config);

// `config` is the checkpoint's, perhaps changed. `threads` 0: all. Both must outlive the runner.
Result<std::unique_ptr<ModelRunner>> start_runner(const ModelConfig& config, const Checkpoint& checkpoint,
                                                  int64_t cache_tokens, int threads,
                                                  std::optional<uint64_t> block_order_seed = std::nullopt);

// The checkpoint must outlive the engine. options.cache_tokens 0: a quarter of the machine's memory, and not
// more than kDefaultCacheTokens.
inline constexpr int64_t kDefaultCacheTokens = 262144;
Result<std::unique_ptr<Engine>> start_engine(const Checkpoint& checkpoint, EngineOptions options);

}  // namespace sparrow::cli
