// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/memory_plan.h"

#include <algorithm>
#include <array>

#include "base/math.h"
#include "cli/args/byte_size.h"
#include "cli/load_model.h"
#include "engine/engine_types.h"
#include "engine/memory/gpu_memory.h"
#include "model/exchange/exchange_way.h"
#include "model/vision/tower.h"

namespace sparrow::cli {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

struct GpuKind {
  std::string_view name;
  double gib;  // that a program can have of it
  int num_sms;
  bool runs_kernels;  // there are kernels for it; the others are there to compare
};

// What programs get of the memory in the data sheet: the H200's was read off one, the others are what their
// users report.
constexpr std::array kKinds = {
    GpuKind{"h100", 79.1, 132, true},  GpuKind{"h800", 79.1, 132, true},   GpuKind{"h20", 95.0, 78, true},
    GpuKind{"h200", 139.8, 132, true}, GpuKind{"b200", 178.3, 148, false},
};

struct Card {
  std::string name;
  int64_t bytes;
  int num_sms;
  bool runs_kernels;
};

Result<Card> find_card(const std::string& name) {
  std::string known;
  for (const GpuKind& kind : kKinds) {
    if (kind.name == name)
      return Card{name, static_cast<int64_t>(kind.gib * kGiB), kind.num_sms, kind.runs_kernels};
    known += strf("{}, ", kind.name);
  }
  const auto bytes = parse_byte_size(name, "--gpu");
  if (!bytes.ok())
    return Error{Errc::kInvalidArgument,
                 strf("--gpu must be one of {}cpu, or a size such as 96G, got {}", known, name)};
  constexpr int kSms = 132;  // of most Hopper cards
  return Card{"GPU of " + byte_string(bytes.value()), bytes.value(), kSms, true};
}

Status fill_types(MemoryPlan& plan, const ModelConfig& config, const MemoryPlanOptions& o) {
  const LoadOptions flags{.kv_cache_dtype = o.kv_cache_dtype,
                          .index_cache_dtype = o.index_cache_dtype,
                          .activation_dtype = o.activation_dtype,
                          .batch_invariant = o.batch_invariant};
  const Device device = plan.is_cpu ? Device::kCpu : Device::kCuda;
  const CacheTypes types = SPARROW_TRY(cache_types(flags, config.dtype, device));
  plan.rounds_tokens = SPARROW_TRY(rounds_tokens(flags, config, device));
  plan.kv_dtype = types.kv;
  plan.index_dtype = types.index;
  const Ledger ledger = make_ledger(config, plan.grid, plan.kv_dtype, plan.index_dtype, false);
  plan.kv_token_bytes = ledger.kv_token_bytes;
  plan.index_token_bytes = ledger.index_token_bytes;
  return Ok{};
}

void size_cache(MemoryPlan& plan, std::optional<int64_t> cache_bytes) {
  const int64_t left = plan.budget_bytes - plan.fixed_bytes();
  plan.num_blocks = std::max<int64_t>(cache_bytes.value_or(left), 0) / plan.block_bytes();
  plan.fits = left >= plan.block_bytes() && plan.num_blocks > 0 && plan.cache_bytes() <= left &&
              !(plan.is_length_given && plan.cache_tokens() < plan.max_model_len);
}

// What images take: the features that are kept, and what the tower needs for the largest of them beyond what
// a step has, which is the same memory.
void add_images(MemoryPlan& plan, const ModelConfig& config, const MemoryPlanOptions& o) {
  const int64_t tokens = CpuOptions().feature_tokens, side = config.vision->spatial_merge_size;
  const int64_t tower = VisionTower::scratch_bytes(config, o.isa, o.threads, tokens * side * side);
  plan.workspace.add("vision tower", std::max<int64_t>(tower - plan.workspace.bytes, 0));
  plan.workspace.add("image features",
                     tokens * config.hidden_size * static_cast<int64_t>(size_of(config.dtype)));
}

Result<MemoryPlan> plan_cpu(const ModelConfig& config, const MemoryPlanOptions& o) {
  if (o.gpus != 1)
    return Error{Errc::kInvalidArgument, strf("--gpus {}: with --gpu cpu there is one rank", o.gpus)};
  MemoryPlan plan{.is_cpu = true, .device = "cpu"};
  SPARROW_TRY(fill_types(plan, config, o));
  const Ledger ledger = make_ledger(config, {}, plan.kv_dtype, plan.index_dtype, /*vision=*/true);
  plan.weights = ledger.weights;
  plan.weight_bytes = plan.stored_bytes = ledger.weight_bytes;
  plan.memory_bytes = plan.budget_bytes = o.machine_bytes;
  plan.max_model_len = o.max_model_len > 0 ? o.max_model_len : config.max_positions;
  plan.is_length_given = o.max_model_len > 0;
  const int tokens = o.max_step_tokens > 0 ? o.max_step_tokens : kCpuStepTokens;
  plan.workspace = cpu_workspace(config,
                                 {.max_step_tokens = std::max(tokens, o.max_step_sequences),
                                  .max_step_sequences = o.max_step_sequences,
                                  .max_context = plan.max_model_len},
                                 o.isa, o.threads);
  if (config.vision) add_images(plan, config, o);
  size_cache(plan, o.kv_cache_bytes.value_or(default_cache_tokens(plan.block_bytes(), o.machine_bytes) / 128 *
                                             plan.block_bytes()));
  return plan;
}

Result<MemoryPlan> plan_gpu(const ModelConfig& config, const MemoryPlanOptions& o) {
  const Card card = SPARROW_TRY(find_card(o.gpu));
  const Grid grid = SPARROW_TRY(find_grid(config, o));
  const ExchangeWay way = exchange_way(grid, o.num_nodes, o.peer_memory);
  SPARROW_TRY(check_exchange(config, grid, way));
  MemoryPlan plan{.runs_kernels = card.runs_kernels, .device = card.name, .grid = grid};
  SPARROW_TRY(fill_types(plan, config, o));
  plan.memory_bytes = card.bytes;
  plan.budget_bytes = static_cast<int64_t>(static_cast<double>(card.bytes) * o.gpu_memory_utilization);

  // f32 becomes bf16, and what is quantised stays so.
  ModelConfig held = config;
  held.dtype = DType::kBF16;
  plan.max_model_len = o.max_model_len > 0 ? o.max_model_len : config.max_positions;
  plan.is_length_given = o.max_model_len > 0;
  const int tokens =
      std::max(o.max_step_tokens > 0 ? o.max_step_tokens : kGpuStepTokens, o.max_step_sequences);
  const int64_t feature_tokens = o.vision ? GpuOptions{}.feature_tokens : 0;
  GpuMemory memory = SPARROW_TRY(plan_gpu_memory(held, grid,
                                                 {.max_step_tokens = tokens,
                                                  .max_step_sequences = o.max_step_sequences,
                                                  .max_logits = max_logit_rows(tokens, o.max_step_sequences),
                                                  .max_context = plan.max_model_len,
                                                  .kv_dtype = plan.kv_dtype,
                                                  .index_dtype = plan.index_dtype,
                                                  .batch_invariant = o.batch_invariant,
                                                  .feature_tokens = feature_tokens,
                                                  .e4m3_tokens = plan.rounds_tokens,
                                                  .nccl = way.nccl},
                                                 card.num_sms));
  plan.weight_bytes = memory.weight_bytes;
  plan.workspace = std::move(memory.workspace);
  plan.driver = std::move(memory.driver);
  plan.pinned_bytes = memory.pinned_bytes;
  const bool vision = plan_tower(held, feature_tokens).has_value();
  const Ledger ledger = make_ledger(held, grid, DType::kBF16, DType::kBF16, vision);
  plan.weights = ledger.weights;
  if (const int64_t padding = plan.weight_bytes - ledger.weight_bytes; padding > 0)
    plan.weights.push_back(
        {grid.tp > 1 ? "index heads of other ranks, padding" : "padding for the kernels", padding});
  plan.stored_bytes = make_ledger(config, grid, DType::kBF16, DType::kBF16, vision).weight_bytes;
  size_cache(plan, o.kv_cache_bytes);
  return plan;
}

Result<MemoryPlan> plan_bare(const ModelConfig& config, const MemoryPlanOptions& o) {
  return o.gpu == "cpu" ? plan_cpu(config, o) : plan_gpu(config, o);
}

// The plan with one thing changed, if it can be made and fits.
template <typename Change>
std::optional<MemoryPlan> changed(const ModelConfig& config, MemoryPlanOptions options, Change&& change) {
  change(options);
  Result<MemoryPlan> plan = plan_bare(config, options);
  if (!plan.ok() || !plan->fits) return std::nullopt;
  return std::move(plan).value();
}

void add_problem(MemoryPlan& plan, std::optional<int64_t> kv_cache_bytes) {
  const int64_t need = plan.fixed_bytes() + plan.block_bytes();
  if (kv_cache_bytes && *kv_cache_bytes < plan.block_bytes())
    return plan.advice.push_back(strf("does not fit: --kv-cache-memory is {}, less than one block of {}",
                                      byte_string(*kv_cache_bytes), byte_string(plan.block_bytes())));
  if (need > plan.budget_bytes)
    plan.advice.push_back(
        strf("does not fit: weights, workspace and one block of cache need {}, and {} may be used",
             byte_string(need), byte_string(plan.budget_bytes)));
  else if (plan.num_blocks == 0 || plan.used_bytes() > plan.budget_bytes)
    plan.advice.push_back(strf(
        "does not fit: a cache of {} with everything else needs {}, and {} may be used",
        byte_string(plan.cache_bytes()), byte_string(plan.used_bytes()), byte_string(plan.budget_bytes)));
  else
    plan.advice.push_back(strf("does not fit: a request of {} tokens, in a cache of {}",
                               grouped(plan.max_model_len), grouped(plan.cache_tokens())));
}

void add_ways_out(MemoryPlan& plan, const ModelConfig& config, const MemoryPlanOptions& options) {
  const auto say = [&](std::string what, const std::optional<MemoryPlan>& other) {
    if (other)
      plan.advice.push_back(
          strf("fits with {}: {} tokens in the cache", what, grouped(other->cache_tokens())));
  };
  if (plan.is_length_given && plan.num_blocks > 0 && plan.used_bytes() <= plan.budget_bytes)
    plan.advice.push_back(strf("fits with --max-model-len {}", plan.cache_tokens()));
  if (options.kv_cache_bytes)
    say("no --kv-cache-memory", changed(config, options, [](auto& o) { o.kv_cache_bytes.reset(); }));
  if (plan.is_cpu) {
    constexpr int64_t kMiB = 1 << 20;
    const int64_t wanted = ceil_div(blocks_for_tokens(plan.max_model_len) * plan.block_bytes(), kMiB);
    say(strf("--kv-cache-memory {}M", wanted),
        changed(config, options, [&](auto& o) { o.kv_cache_bytes = wanted * kMiB; }));
    return;
  }
  if (plan.kv_dtype != DType::kF8E4M3)
    say("--kv-cache-dtype fp8", changed(config, options, [](auto& o) { o.kv_cache_dtype = "fp8"; }));
  if (plan.index_dtype != DType::kF8E4M3)
    say("--kv-cache-dtype fp8 --index-cache-dtype fp8",
        changed(config, options, [](auto& o) { o.kv_cache_dtype = o.index_cache_dtype = "fp8"; }));
  if (const int64_t fewer = options.max_step_sequences / 4; fewer > 0)
    if (const auto other = changed(config, options, [&](auto& o) {
          o.max_step_sequences = static_cast<int>(fewer);
          o.max_step_tokens = std::min(o.max_step_tokens > 0 ? o.max_step_tokens : kGpuStepTokens, 2048);
        }))
      say(strf("--max-num-seqs {} --max-num-batched-tokens 2048", fewer), other);
  for (int gpus = plan.grid.world() * 2; gpus <= 64; gpus *= 2)
    if (const auto other = changed(config, options, [&](auto& o) { o.gpus = gpus, o.grid.reset(); })) {
      say(strf("--gpus {}", gpus), other);
      return;
    }
}

}  // namespace

std::string grouped(int64_t value) {
  std::string digits = strf("{}", value);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

Result<Grid> find_grid(const ModelConfig& config, const MemoryPlanOptions& o) {
  const std::vector<Grid> grids = supported_grids(config, o.gpus);
  const Grid grid = o.grid ? *o.grid : grids.empty() ? Grid{.tp = o.gpus} : grids.front();
  SPARROW_TRY(validate(config, grid));
  return grid;
}

int64_t MemoryPlan::full_requests() const {
  return grid.dp * (num_blocks / std::max<int64_t>(blocks_for_tokens(max_model_len), 1));
}

Result<MemoryPlan> make_memory_plan(const ModelConfig& config, const MemoryPlanOptions& options) {
  if (options.max_model_len > config.max_positions)
    return Error{Errc::kInvalidArgument, strf("--max-model-len {} exceeds the model's {} positions",
                                              options.max_model_len, config.max_positions)};
  MemoryPlan plan = SPARROW_TRY(plan_bare(config, options));
  if (!plan.fits) {
    add_problem(plan, options.kv_cache_bytes);
    add_ways_out(plan, config, options);
  } else if (plan.full_requests() == 0) {
    plan.advice.push_back(strf("requests end at {} tokens: the cache is full then; the model can do {}",
                               grouped(plan.cache_tokens()), grouped(plan.max_model_len)));
    MemoryPlanOptions whole = options;
    whole.max_model_len = plan.max_model_len;
    add_ways_out(plan, config, whole);
  }
  if (!plan.runs_kernels)
    plan.advice.push_back(strf("{}: for comparison only, the kernels are for Hopper", plan.device));
  return plan;
}

}  // namespace sparrow::cli
