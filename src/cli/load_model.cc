// SPDX-License-Identifier: Apache-2.0
#include "cli/load_model.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/files/mapped_file.h"
#include "base/json/json.h"
#include "base/progress.h"
#include "cli/ranks/rank_process.h"
#include "engine/cpu/cpu_runner.h"
#include "engine/ranks/rank_group.h"
#include "engine/sim/sim_runner.h"
#include "model/ledger.h"
#include "model/sharding.h"
#include "ops/gpu_workspace.h"

namespace sparrow::cli {
namespace {

void tell(const char* kernels, int threads, size_t weight_bytes, size_t cache_bytes, int64_t cache_tokens) {
  std::fputs(
      strf("{} kernels, {} threads, weights {:.3g} GB, cache {:.3g} GB for {} tokens\n", kernels, threads,
           static_cast<double>(weight_bytes) / 1e9, static_cast<double>(cache_bytes) / 1e9, cache_tokens)
          .c_str(),
      stderr);
}

void tell_gpu(const EngineInfo& info, int64_t max_model_tokens) {
  const auto row = [](const char* name, size_t bytes, const std::string& what) {
    std::fputs(strf("  {:<12}{:>9.2f} GiB  {}\n", name, static_cast<double>(bytes) / (1 << 30), what).c_str(),
               stderr);
  };
  std::fputs(strf("{}, {} kernels\n", info.device, info.kernels).c_str(), stderr);
  row("weights", info.weight_bytes, "");
  row("workspace", info.workspace_bytes, "of the largest step");
  row("cache", info.cache_bytes,
      strf("{} blocks, {} tokens: {} requests of {} tokens; K and V {}, index keys {}", info.num_blocks,
           info.cache_tokens, info.cache_tokens / std::max<int64_t>(max_model_tokens, 1), max_model_tokens,
           short_name_of(info.kv_dtype), short_name_of(info.index_dtype)));
  const size_t taken = info.weight_bytes + info.workspace_bytes + info.cache_bytes;
  row("left", info.device_bytes - std::min(taken, info.device_bytes), "");
}

constexpr uint64_t kDummySeed = 0;

Device device_of(const LoadOptions& options) {
  return options.device == "cuda" ? Device::kCuda : Device::kCpu;
}

Result<DType> cache_dtype(std::string_view flag, std::string_view value, DType model_dtype, Device device) {
  const bool on_gpu = device == Device::kCuda;
  if (value == "auto") return on_gpu ? DType::kBF16 : model_dtype;
  if (value == "bfloat16" || value == "bf16") {
    if (on_gpu || model_dtype == DType::kBF16) return DType::kBF16;
    return Error{Errc::kUnsupported,
                 strf("{} {}: on the CPU the cache of a float32 model is float32", flag, value)};
  }
  if (value != "fp8" && value != "fp8_e4m3")
    return Error{Errc::kInvalidArgument,
                 strf("{} must be auto, bfloat16 (bf16) or fp8 (fp8_e4m3), got {}", flag, value)};
  if (on_gpu) return DType::kF8E4M3;
  return Error{Errc::kUnsupported,
               strf("{} {}: needs a GPU; on the CPU the cache has the model's own type", flag, value)};
}

// Whether the flags ask for e4m3, and go with each other.
Result<bool> asks_for_e4m3(const LoadOptions& options, Device device) {
  const std::string& value = options.activation_dtype;
  if (value == "auto" || value == "bfloat16" || value == "bf16") return false;
  if (value != "fp8" && value != "fp8_e4m3")
    return Error{Errc::kInvalidArgument,
                 strf("--activation-dtype must be auto, bfloat16 (bf16) or fp8 (fp8_e4m3), got {}", value)};
  if (device != Device::kCuda)
    return Error{Errc::kUnsupported, strf("--activation-dtype {}: needs a GPU", value)};
  if (options.batch_invariant)
    return Error{
        Errc::kUnsupported,
        strf("--activation-dtype {}: not with --batch-invariant, since only large steps round", value)};
  return true;
}

// What the flags about the model say to the engine.
Status add_load(EngineOptions& options, const ModelConfig& config, const LoadOptions& load) {
  options.device = device_of(load);
  options.cpu.isa = ops::cpu_isa_named(load.isa);
  options.gpu.e4m3_tokens = SPARROW_TRY(rounds_tokens(load, config, options.device));
  if (options.device == Device::kCuda) {
    const CacheTypes types = SPARROW_TRY(cache_types(load, config.dtype, options.device));
    options.gpu.kv_dtype = types.kv;
    options.gpu.index_dtype = types.index;
    options.gpu.batch_invariant = load.batch_invariant;
    if (load.gpu_memory_utilization) options.gpu.memory_utilization = *load.gpu_memory_utilization;
    if (load.load_format == "dummy") options.gpu.dummy_seed = kDummySeed;
    if (!load.vision) options.gpu.feature_tokens = 0;
  }
  if (options.cache_tokens == 0 && options.device == Device::kCpu) {
    const int64_t block_bytes = SPARROW_TRY(cache_block_bytes(config, load, options.grid));
    options.cache_tokens = default_cache_tokens(block_bytes, machine_bytes() / options.grid.world());
  }
  return Ok{};
}

Status check_simulation(const LoadOptions& options) {
  if (options.device != "sim") {
    if (options.cost_model.empty() && !options.sim_output_tokens) return Ok{};
    return Error{Errc::kInvalidArgument,
                 strf("{}: only with --device sim",
                      options.cost_model.empty() ? "--sim-output-tokens" : "--cost-model")};
  }
  if (options.cost_model.empty())
    return Error{Errc::kInvalidArgument, "--device sim: give --cost-model, which says how long steps take"};
  if (options.sim_output_tokens && !(*options.sim_output_tokens >= 1))
    return Error{Errc::kInvalidArgument,
                 strf("--sim-output-tokens must be at least 1, got {}", *options.sim_output_tokens)};
  SPARROW_TRY(CostModel::read(options.cost_model));
  return Ok{};
}

Result<std::unique_ptr<Engine>> simulated_engine(const ModelConfig& config, const EngineOptions& options,
                                                 const LoadOptions& load) {
  const SimOptions simulation{.cost = SPARROW_TRY(CostModel::read(load.cost_model)),
                              .output_tokens = load.sim_output_tokens.value_or(200)};
  auto runner = SPARROW_TRY(SimRunner::create(config, simulation, options.cache_tokens));
  auto engine = SPARROW_TRY(Engine::create(config, std::move(runner), options));
  const EngineInfo& info = engine->info();
  std::fputs(
      strf("{}: no model runs, answers are random; cache for {} tokens\n", info.device, info.cache_tokens)
          .c_str(),
      stderr);
  return engine;
}

bool has_weights(const std::filesystem::path& dir) {
  std::error_code ec;
  return std::filesystem::exists(dir / "model.safetensors.index.json", ec) ||
         std::filesystem::exists(dir / "model.safetensors", ec);
}

}  // namespace

void resolve_device(LoadOptions& options) {
  if (options.device == "auto") options.device = has_usable_gpu(GpuOptions{}.ordinal) ? "cuda" : "cpu";
}

bool built_with_cuda() {
#ifdef SPARROW_WITH_CUDA
  return true;
#else
  return false;
#endif
}

int64_t machine_bytes() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
}

int64_t default_cache_tokens(int64_t block_bytes, int64_t machine_bytes) {
  const int64_t blocks = machine_bytes / 4 / block_bytes;
  return std::clamp<int64_t>(blocks * kBlockTokens, kBlockTokens, kDefaultCacheTokens);
}

Result<CacheTypes> cache_types(const LoadOptions& options, DType model_dtype, Device device) {
  return CacheTypes{
      .kv = SPARROW_TRY(cache_dtype("--kv-cache-dtype", options.kv_cache_dtype, model_dtype, device)),
      .index =
          SPARROW_TRY(cache_dtype("--index-cache-dtype", options.index_cache_dtype, model_dtype, device))};
}

Result<bool> rounds_tokens(const LoadOptions& options, const ModelConfig& config, Device device) {
  using ops::cuda::kE4m3Columns;
  if (!SPARROW_TRY(asks_for_e4m3(options, device))) return false;
  if (config.quant != QuantFormat::kMxfp8)
    return Error{Errc::kUnsupported, strf("--activation-dtype {}: needs a model with experts in MXFP8",
                                          options.activation_dtype)};
  if (config.hidden_size % kE4m3Columns != 0)
    return Error{Errc::kUnsupported,
                 strf("--activation-dtype {}: hidden_size must be a multiple of {}, got {}",
                      options.activation_dtype, kE4m3Columns, config.hidden_size)};
  return true;
}

Status check_isa(const LoadOptions& options) {
  if (options.isa == "auto") return Ok{};
  const std::optional<CpuIsa> isa = ops::cpu_isa_named(options.isa);
  if (!isa)
    return Error{Errc::kInvalidArgument,
                 strf("--isa must be auto, avx2, avx512, avx512-bf16 or amx, got {}", options.isa)};
  const CpuIsa best = ops::detect_cpu_isa();
  if (*isa <= best) return Ok{};
  return Error{Errc::kUnsupported, strf("--isa {}: this machine does not have it; its best is {}",
                                        options.isa, ops::name_of(best))};
}

Status check(const LoadOptions& options) {
  SPARROW_TRY(check_isa(options));
  if (const auto& share = options.gpu_memory_utilization) {
    if (!(*share > 0 && *share <= 1))
      return Error{Errc::kInvalidArgument,
                   strf("--gpu-memory-utilization must be in (0, 1], got {}", *share)};
    if (options.device == "cpu")
      return Error{
          Errc::kUnsupported,
          "--gpu-memory-utilization: there is no GPU in use; the cache of a CPU has a size of its own"};
  }
  if (options.device != "auto" && options.device != "cpu" && options.device != "cuda" &&
      options.device != "sim")
    return Error{Errc::kInvalidArgument,
                 strf("--device must be auto, cpu, cuda or sim, got {}", options.device)};
  SPARROW_TRY(check_simulation(options));
  if (options.device == "cuda" && !built_with_cuda())
    return Error{Errc::kUnsupported, "--device cuda: this program was built without CUDA"};
  if (options.load_format != "auto" && options.load_format != "dummy")
    return Error{Errc::kUnsupported, strf("--load-format {}: auto (the checkpoint) or dummy (random weights)",
                                          options.load_format)};
  SPARROW_TRY(cache_types(options, DType::kBF16, device_of(options)));
  SPARROW_TRY(asks_for_e4m3(options, device_of(options)));
  if (options.hf_overrides.empty()) return Ok{};
  SPARROW_TRY(JsonDocument::parse(options.hf_overrides, "--hf-overrides"));
  return Ok{};
}

Result<Checkpoint> load_checkpoint(const std::filesystem::path& dir, const LoadOptions& options,
                                   const RankProcess* ranks) {
  SPARROW_TRY(check(options));
  const bool quiet = ranks && ranks->grid().rank > 0;
  const bool dummy = options.load_format == "dummy";
  ProgressBar bar(strf("{} {}", dummy ? "random weights for" : "loading", folder_name(dir)),
                  ProgressBar::Unit::kBytes);
  // What goes to a GPU is read once, on its way there.
  const bool is_cpu = device_of(options) == Device::kCpu;
  const CheckpointOptions from{.prefault = is_cpu,
                               .reader = ranks ? ranks->place().local_rank : 0,
                               .num_readers = ranks ? ranks->place().local_world : 1,
                               .check_scales = is_cpu,
                               .vision = options.vision,
                               .progress = quiet ? ProgressFn() : bar.callback(),
                               .overrides = options.hf_overrides};
  // A GPU makes its random weights itself, and what is simulated needs none.
  const bool no_weights = options.device == "sim" || (dummy && !is_cpu);
  auto checkpoint = no_weights ? Checkpoint::without_weights(dir, from)
                    : dummy    ? Checkpoint::random(dir, kDummySeed, from)
                               : Checkpoint::open(dir, from);
  if (!checkpoint.ok()) {
    std::error_code ec;
    const bool only_weights_missing = checkpoint.error().code == Errc::kNotFound && !dummy &&
                                      std::filesystem::exists(dir / "config.json", ec) && !has_weights(dir);
    if (only_weights_missing)
      return Error{Errc::kNotFound,
                   checkpoint.error().message + "; --load-format dummy runs with random weights"};
    return checkpoint;
  }
  SPARROW_TRY(cache_types(options, checkpoint->config().dtype, device_of(options)));
  SPARROW_TRY(rounds_tokens(options, checkpoint->config(), device_of(options)));
  if (!quiet) bar.finish();
  return checkpoint;
}

Result<int64_t> cache_block_bytes(const ModelConfig& config, const LoadOptions& options, const Grid& grid) {
  const CacheTypes types = SPARROW_TRY(cache_types(options, config.dtype, device_of(options)));
  const int shares = index_ranks(grid, device_of(options));
  return make_ledger(config, grid, types.kv, types.index, /*vision=*/false, shares).block_bytes();
}

Result<std::unique_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path& dir,
                                                  const ModelConfig& config) {
  std::error_code ec;
  if (!std::filesystem::exists(dir / "tokenizer.json", ec)) return std::unique_ptr<Tokenizer>();
  auto tokenizer = std::make_unique<Tokenizer>(SPARROW_TRY(Tokenizer::load(dir)));
  tokenizer->reserve_ids(config.vocab_size);
  return tokenizer;
}

Result<std::unique_ptr<SequenceRunner>> start_runner(const ModelConfig& config, const Checkpoint& checkpoint,
                                                     int64_t cache_tokens, int threads,
                                                     std::optional<uint64_t> block_order_seed) {
  auto runner =
      SPARROW_TRY(CpuRunner::create(config, checkpoint.weights(), cache_tokens, {.threads = threads}));
  const EngineInfo& info = runner->info();
  tell(info.kernels.c_str(), info.threads, checkpoint.weight_bytes(), info.cache_bytes, cache_tokens);
  return std::make_unique<SequenceRunner>(std::move(runner), block_order_seed);
}

Result<std::unique_ptr<Engine>> start_engine(const Checkpoint& checkpoint, EngineOptions options,
                                             const LoadOptions& load, RankProcess* ranks) {
  if (load.device == "sim") return simulated_engine(checkpoint.config(), options, load);
  SPARROW_TRY(add_load(options, checkpoint.config(), load));
  ProgressBar bar("weights to the GPU", ProgressBar::Unit::kBytes);
  options.gpu.progress = bar.callback();
  if (ranks) options.gpu.load_order = ranks->load_order(checkpoint.files());
  auto runner = SPARROW_TRY(ranks ? ranks->create_runner(checkpoint.config(), checkpoint.weights(), options)
                                  : create_runner(checkpoint.config(), checkpoint.weights(), options));
  auto engine = SPARROW_TRY(Engine::create(checkpoint.config(), std::move(runner), options));
  const EngineInfo& info = engine->info();
  if (info.num_ranks > 1) std::fputs(strf("{}, on each rank:\n", describe(options.grid)).c_str(), stderr);
  if (options.device == Device::kCuda) {
    bar.finish();
    tell_gpu(info, engine->limits().max_model_tokens);
  } else {
    tell(info.kernels.c_str(), info.threads, checkpoint.weight_bytes(), info.cache_bytes, info.cache_tokens);
  }
  for (const std::string& warning : info.warnings) std::fputs(strf("warning: {}\n", warning).c_str(), stderr);
  return engine;
}

Result<int> follow_rank_0(const Checkpoint& checkpoint, EngineOptions options, const LoadOptions& load,
                          RankProcess& ranks) {
  SPARROW_TRY(add_load(options, checkpoint.config(), load));
  options.gpu.load_order = ranks.load_order(checkpoint.files());
  const auto runner = SPARROW_TRY(ranks.create_runner(checkpoint.config(), checkpoint.weights(), options));
  return ranks.follow(*runner, checkpoint.config(), options);
}

}  // namespace sparrow::cli
