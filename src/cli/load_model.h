// SPDX-License-Identifier: Apache-2.0
// What every command does before its own work: open a checkpoint and start a runner or an engine, telling the
// user about it.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "cli/load_options.h"
#include "engine/engine.h"
#include "engine/sequence_runner.h"
#include "text/tokenizer/tokenizer.h"

namespace sparrow::cli {

class RankProcess;

// "auto" becomes "cuda" where there is a GPU that the kernels run on, and "cpu" elsewhere.
void resolve_device(LoadOptions& options);

// Whether this program can use a GPU at all.
bool built_with_cuda();

// What is wrong with the flags themselves, before anything is loaded.
Status check(const LoadOptions& options);

// `ranks`: this process is one of several. A node's ranks read the files together, and rank 0 tells of it.
Result<Checkpoint> load_checkpoint(const std::filesystem::path& dir, const LoadOptions& options = {},
                                   const RankProcess* ranks = nullptr);

// What --kv-cache-dtype and --index-cache-dtype mean. Error: the device has no such cache. This is the one
// place that says which device has which. Index keys are fp8 only for who asks for it: fp8 K and V round what
// is attended to, fp8 index keys change which blocks are.
struct CacheTypes {
  DType kv = DType::kBF16, index = DType::kBF16;
};
Result<CacheTypes> cache_types(const LoadOptions& options, DType model_dtype, Device device);

// What --activation-dtype means: whether large steps round their rows to e4m3. Error: the device, the model
// or another flag does not go with it.
Result<bool> rounds_tokens(const LoadOptions& options, const ModelConfig& config, Device device);

// The tokenizer of a model's folder, knowing all ids of the model; null where the folder has none.
Result<std::unique_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path& dir,
                                                  const ModelConfig& config);

// On a CPU. `config` is the checkpoint's, perhaps changed. `threads` 0: all. Both must outlive the runner.
Result<std::unique_ptr<SequenceRunner>> start_runner(const ModelConfig& config, const Checkpoint& checkpoint,
                                                     int64_t cache_tokens, int threads,
                                                     std::optional<uint64_t> block_order_seed = std::nullopt);

// Bytes of one block of a rank's cache, all layers.
Result<int64_t> cache_block_bytes(const ModelConfig& config, const LoadOptions& options,
                                  const Grid& grid = {});

// Tokens of the CPU's cache where nobody says how many: a quarter of the memory, and not more than the first.
inline constexpr int64_t kDefaultCacheTokens = 262144;
int64_t default_cache_tokens(int64_t block_bytes, int64_t machine_bytes);
int64_t machine_bytes();

// Tokens run in one step where nobody says how many.
inline constexpr int kCpuStepTokens = 512, kGpuStepTokens = 8192;

// The checkpoint must outlive the engine. options.cache_tokens 0: as above, and on a GPU what fits.
// `ranks`: this is the first of them; null: the only one.
Result<std::unique_ptr<Engine>> start_engine(const Checkpoint& checkpoint, EngineOptions options,
                                             const LoadOptions& load = {}, RankProcess* ranks = nullptr);

// What all other ranks do instead: what rank 0 says, until it stops. The exit code.
Result<int> follow_rank_0(const Checkpoint& checkpoint, EngineOptions options, const LoadOptions& load,
                          RankProcess& ranks);

}  // namespace sparrow::cli
