// SPDX-License-Identifier: Apache-2.0
// `sparrow bench step`: the time of one step of one rank, part by part, beside the floor of each part.
#include "cli/bench/bench_step.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <random>

#include "base/json/json_writer.h"
#include "base/progress.h"
#include "checkpoint/random/synthetic.h"
#include "cli/bench/step_cost.h"
#include "cli/bench/step_picture.h"
#include "cli/load_model.h"
#include "engine/ranks/rank_group.h"

namespace sparrow::cli {
namespace {

// More than a server takes: nothing else is on the card while it is measured.
constexpr double kMemoryUtilization = 0.92;

struct Case {
  int batch, queries, context;
  int prompt_queries = 0, prompt_context = 0;  // of one request more

  int tokens() const { return batch * queries + prompt_queries; }
  int requests() const { return batch + (prompt_queries > 0 ? 1 : 0); }
  int longest() const { return std::max(context, prompt_context); }
};

std::vector<Case> cases_of(const BenchStepOptions& options) {
  std::vector<Case> cases;
  for (const int context : options.context)
    for (const int batch : options.batch) {
      if (options.phase == "decode") {
        cases.push_back({batch, 1, context});
        continue;
      }
      for (const int chunk : options.chunk) {
        if (options.phase == "prefill") cases.push_back({batch, std::min(chunk, context), context});
        if (options.phase == "mixed")
          for (const int prompt : options.prompt_context)
            cases.push_back({batch, 1, context, std::min(chunk, prompt), prompt});
      }
    }
  return cases;
}

// Requests of random ids, as many for each group, whose blocks lie anywhere in the group's cache, each
// request's its own as far as there are enough.
Batch make_batch(const Case& c, int vocab_size, int num_blocks, int groups) {
  std::mt19937_64 random(7);
  Batch batch;
  batch.cu_seqlens_q = {0};
  batch.max_blocks = static_cast<int>(blocks_for_tokens(c.longest()));
  std::vector<int32_t> order(num_blocks);
  for (int i = 0; i < num_blocks; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  for (int r = 0; r < c.requests() * groups; ++r) {
    const bool is_prompt = r % c.requests() == c.batch;  // behind those that decode
    const int queries = is_prompt ? c.prompt_queries : c.queries;
    const int context = is_prompt ? c.prompt_context : c.context;
    const int64_t first_block = int64_t{r % c.requests()} * batch.max_blocks;
    const int32_t first_of_group = r / c.requests() * num_blocks;
    const auto block = [&](int64_t i) { return first_of_group + order[(first_block + i) % num_blocks]; };
    for (int i = 0; i < batch.max_blocks; ++i) batch.block_table.push_back(block(i));
    for (int q = 0; q < queries; ++q) {
      const int position = context - queries + q;
      batch.ids.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size)));
      batch.positions.push_back(position);
      batch.slots.push_back(int64_t{block(position / kBlockTokens)} * kBlockTokens + position % kBlockTokens);
    }
    batch.cu_seqlens_q.push_back(batch.num_tokens());
    batch.seq_lens.push_back(context);
    batch.logit_rows.push_back(batch.num_tokens() - 1);
  }
  for (int g = 0; g <= groups && groups > 1; ++g) batch.group_sequences.push_back(g * c.requests());
  return batch;
}

struct PartResult {
  PartCost cost;
  double us = 0, floor_us = 0;
};

struct CaseResult {
  Case c;
  StepTimes times;
  std::vector<PartResult> parts;
  double floor_us = 0, bytes = 0, flops = 0, experts_hit = 0;

  double fraction() const { return floor_us / times.median_us; }
  // Of the time from one step's ids to the next one's, the GPU works this share.
};

CaseResult evaluate(const Case& c, StepTimes times, const ModelConfig& config, const Grid& grid,
                    const CacheTypes& types) {
  CaseResult result{.c = c};
  const StepWork work{.requests = c.batch,
                      .queries = c.queries,
                      .context = c.context,
                      .prompt_queries = c.prompt_queries,
                      .prompt_context = c.prompt_context,
                      .kv_dtype = types.kv,
                      .index_dtype = types.index,
                      .experts_hit = times.experts_hit};
  for (const PartCost& cost : step_cost(config, grid, work)) {
    PartResult part{.cost = cost, .floor_us = cost.floor_us(times.read_bytes_per_us, times.flops_per_us)};
    for (const StepTimes::Span& span : times.timeline)
      if (span.part == cost.part) part.us += span.end_us - span.begin_us;
    result.floor_us += part.floor_us;
    result.bytes += cost.bytes;
    result.flops += cost.flops;
    result.parts.push_back(part);
  }
  int layers = 0;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (!config.layer_is_moe[layer]) continue;
    ++layers;
    result.experts_hit += times.experts_hit[layer];
  }
  if (layers > 0) result.experts_hit /= layers;
  result.times = std::move(times);
  return result;
}

void print_parts(const CaseResult& r) {
  std::printf("\n  %-20s %10s %10s %10s %9s %9s\n", "part", "us", "floor us", "fraction", "GB", "TFLOP");
  for (const PartResult& part : r.parts)
    if (part.us > 0)
      std::printf("  %-20s %10.1f %10.1f %9.0f%% %9.3f %9.3f\n", std::string(part.cost.part).c_str(), part.us,
                  part.floor_us, 100 * part.floor_us / part.us, part.cost.bytes / 1e9,
                  part.cost.flops / 1e12);
  std::printf("  attention: %s\n", r.times.attention_kernels.c_str());
}

double exchange_us(const StepTimes& times) {
  double us = 0;
  for (const StepTimes::Span& span : times.timeline)
    if (span.part == kExchangePart) us += span.end_us - span.begin_us;
  return us;
}

void print_ranks(const StepTimes& times) {
  std::printf("  ranks in turn, ms:");
  for (const double us : times.rank_us) std::printf(" %.3f", us / 1e3);
  std::printf("; of the first, exchanges %.3f\n", exchange_us(times) / 1e3);
}

void print_case(const CaseResult& r, int groups) {
  std::printf("\n%d request%s x %d new token%s, context %d", r.c.batch, r.c.batch == 1 ? "" : "s",
              r.c.queries, r.c.queries == 1 ? "" : "s", r.c.context);
  if (r.c.prompt_queries > 0)
    std::printf(", and a prompt's %d of %d", r.c.prompt_queries, r.c.prompt_context);
  std::printf("%s\n", groups > 1 ? ", in each group" : "");
  std::printf(
      "  step %.2f ms (%.2f to %.2f), floor %.2f ms: %.2fx; %.2f GB, %.2f TFLOP (%.0f%% of %.0f TFLOP/s)\n",
      r.times.median_us / 1e3, r.times.min_us / 1e3, r.times.max_us / 1e3, r.floor_us / 1e3,
      r.times.median_us / r.floor_us, r.bytes / 1e9, r.flops / 1e12,
      100 * r.flops / r.times.median_us / r.times.flops_per_us, r.times.flops_per_us / 1e6);
  if (r.times.rank_us.empty())
    std::printf(
        "  from ids to ids %.2f ms, of it sampling %.0f us; the GPU works %.1f%% of it; %.1f experts hit\n",
        r.times.wall_us / 1e3, r.times.sampling_us, 100 * r.times.busy, r.experts_hit);
  if (!r.times.rank_us.empty()) print_ranks(r.times);
  print_parts(r);
}

void print_json(const CaseResult& r, const ModelConfig& config, const BenchStepOptions& options) {
  JsonWriter json(JsonWriter::Style::kSpaced);
  json.begin_object().key("phase").string(options.phase).key("batch").integer(r.c.batch);
  json.key("queries").integer(r.c.queries).key("context").integer(r.c.context);
  if (r.c.prompt_queries > 0) {
    json.key("prompt_queries").integer(r.c.prompt_queries);
    json.key("prompt_context").integer(r.c.prompt_context);
  }
  json.key("layers").integer(config.num_layers).key("sparse_layers");
  json.integer(std::count(config.layer_is_sparse.begin(), config.layer_is_sparse.end(), 1));
  json.key("tensor_parallel_size").integer(options.grid.tp);
  json.key("data_parallel_size").integer(options.grid.dp);
  json.key("expert_parallel").boolean(options.grid.expert_parallel);
  json.key("kv_cache_dtype").string(options.load.kv_cache_dtype);
  json.key("index_cache_dtype").string(options.load.index_cache_dtype);
  json.key("activation_dtype").string(options.load.activation_dtype);
  json.key("batch_invariant").boolean(options.load.batch_invariant);
  json.key("step_us").number(r.times.median_us).key("min_us").number(r.times.min_us);
  json.key("max_us").number(r.times.max_us).key("floor_us").number(r.floor_us);
  json.key("fraction_of_floor").number(r.fraction()).key("wall_us").number(r.times.wall_us);
  json.key("sampling_us").number(r.times.sampling_us).key("gpu_busy").number(r.times.busy);
  json.key("experts_hit").number(r.experts_hit).key("bytes").number(r.bytes).key("flops").number(r.flops);
  json.key("read_gb_per_s").number(r.times.read_bytes_per_us / 1e3);
  json.key("product_tflops").number(r.times.flops_per_us / 1e6);
  if (!r.times.rank_us.empty()) {
    json.key("exchange_us").number(exchange_us(r.times)).key("rank_us").begin_array();
    for (const double us : r.times.rank_us) json.number(us);
    json.end_array();
  }
  json.key("parts").begin_object();
  for (const PartResult& part : r.parts) {
    json.key(part.cost.part).begin_object().key("us").number(part.us).key("floor_us").number(part.floor_us);
    json.key("bytes").number(part.cost.bytes).key("flops").number(part.cost.flops).end_object();
  }
  json.end_object().end_object();
  std::puts(json.text().c_str());
  std::fflush(stdout);
}

Status check(const BenchStepOptions& options) {
  if (options.model.empty() == options.preset.empty())
    return Error{Errc::kInvalidArgument, "bench step needs either --model or --preset"};
  if (options.load.device == "cpu" || options.load.device == "sim")
    return Error{Errc::kInvalidArgument,
                 strf("bench step measures a GPU: --device {} makes no sense here", options.load.device)};
  if (options.phase != "decode" && options.phase != "prefill" && options.phase != "mixed")
    return Error{Errc::kInvalidArgument,
                 strf("--phase must be decode, prefill or mixed, got {}", options.phase)};
  return Ok{};
}

// Of the preset's shapes, without weights; -mxfp8 or -mxfp4 behind its name quantises it.
Result<ModelConfig> preset_config(const std::string& preset) {
  const SyntheticConfig text = SPARROW_TRY(synthetic_config(preset));
  return parse_config(text.config_json, text.generation_config_json);
}

}  // namespace

Status run_bench_step(const BenchStepOptions& options) {
  SPARROW_TRY(check(options));
  SPARROW_TRY(check(options.load));
  std::optional<Checkpoint> checkpoint;
  if (options.preset.empty()) checkpoint = SPARROW_TRY(load_checkpoint(options.model, options.load));
  ModelConfig config = checkpoint ? checkpoint->config() : SPARROW_TRY(preset_config(options.preset));
  config.dtype = DType::kBF16;
  if (options.layers > 0 && options.layers < config.num_layers) {
    config.num_layers = options.layers;
    config.layer_is_sparse.resize(static_cast<size_t>(options.layers));
    config.layer_is_moe.resize(static_cast<size_t>(options.layers));
  }

  const std::vector<Case> cases = cases_of(options);
  RankOptions rank_options;
  rank_options.gpu.feature_tokens = 0;
  for (const Case& c : cases) {
    if (c.longest() > config.max_positions)
      return Error{Errc::kInvalidArgument,
                   strf("--context {} exceeds the model's {} positions", c.longest(), config.max_positions)};
    rank_options.max_context = std::max<int64_t>(rank_options.max_context, c.longest());
    rank_options.max_step_tokens = std::max(rank_options.max_step_tokens, c.tokens());
    rank_options.max_step_sequences = std::max(rank_options.max_step_sequences, c.requests());
  }
  const CacheTypes types = SPARROW_TRY(cache_types(options.load, config.dtype, Device::kCuda));
  ProgressBar bar("weights", ProgressBar::Unit::kBytes);
  rank_options.grid = options.grid;
  rank_options.gpu = {.kv_dtype = types.kv,
                      .index_dtype = types.index,
                      .memory_utilization = options.load.gpu_memory_utilization.value_or(kMemoryUtilization),
                      .batch_invariant = options.load.batch_invariant,
                      .e4m3_tokens = SPARROW_TRY(rounds_tokens(options.load, config, Device::kCuda)),
                      .progress = bar.callback()};
  if (!checkpoint || options.load.load_format == "dummy") rank_options.gpu.dummy_seed = 0;
  const Weights none;
  const auto create = options.all_ranks ? create_ranks_in_turn : create_rank_group;
  const auto group = SPARROW_TRY(create(config, checkpoint ? checkpoint->weights() : none, rank_options));
  bar.finish();
  group->fill_cache(1);
  const EngineInfo& info = group->info();
  std::fputs(strf("{}: weights {:.2f} GiB, cache {:.2f} GiB ({} tokens), workspace {:.2f} GiB\n", info.device,
                  static_cast<double>(info.weight_bytes) / (1 << 30),
                  static_cast<double>(info.cache_bytes) / (1 << 30), info.cache_tokens,
                  static_cast<double>(info.workspace_bytes) / (1 << 30))
                 .c_str(),
             stderr);
  for (const std::string& warning : info.warnings) std::fputs(strf("warning: {}\n", warning).c_str(), stderr);

  std::string picture;
  for (const Case& c : cases) {
    const Batch batch =
        make_batch(c, config.vocab_size, info.num_blocks, options.all_ranks ? options.grid.dp : 1);
    StepTimes times = group->profile(batch, options.repeats);
    const CaseResult result = evaluate(c, std::move(times), config, options.grid, types);
    if (options.json)
      print_json(result, config, options);
    else
      print_case(result, options.grid.dp);
    if (!options.svg.empty()) picture = step_picture(result.times);
  }
  if (!options.svg.empty() && !(std::ofstream(options.svg) << picture))
    return Error{Errc::kIo, strf("{} could not be written", options.svg.string())};
  return Ok{};
}

}  // namespace sparrow::cli
