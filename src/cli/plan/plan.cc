// SPDX-License-Identifier: Apache-2.0
// `sparrow plan`: the memory of one rank as a table, and what fits into it.
#include "cli/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "base/json/json.h"
#include "base/json/json_writer.h"
#include "base/threads/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/random/synthetic.h"
#include "checkpoint/tensor_table.h"
#include "cli/args/byte_size.h"
#include "cli/load_model.h"
#include "cli/plan/memory_plan.h"
#include "cli/plan/plan_fleet.h"
#include "config/overrides.h"

namespace sparrow::cli {
namespace {

struct NamedConfig {
  std::string name;
  ModelConfig config;
};

Result<NamedConfig> preset_config(const std::string& name, const std::string& overrides) {
  SyntheticConfig texts = SPARROW_TRY(synthetic_config(name));
  if (!overrides.empty()) texts.config_json = SPARROW_TRY(override_config(texts.config_json, overrides));
  ModelConfig config = SPARROW_TRY(parse_config(texts.config_json, texts.generation_config_json));
  return NamedConfig{name, std::move(config)};
}

Result<NamedConfig> find_config(const PlanCommandOptions& o) {
  std::error_code ec;
  if (std::filesystem::exists(o.model, ec)) {
    ModelConfig config = SPARROW_TRY(model_config(o.model, o.hf_overrides));
    return NamedConfig{o.model, std::move(config)};
  }
  auto preset = preset_config(o.model, o.hf_overrides);
  if (preset.ok() || preset.error().message.find("preset must be") == std::string::npos) return preset;
  std::string names;
  for (const SyntheticPreset& known : synthetic_presets())
    names += strf("{}{}", names.empty() ? "" : ", ", known.name);
  return Error{Errc::kNotFound,
               strf("{} is neither a folder, nor a config.json, nor one of {} (-mxfp8, -mxfp4 or "
                    "-mxfp4-mxfp8 behind the name: quantised)",
                    json_quoted(o.model), names)};
}

int64_t num_parameters(const ModelConfig& config) {
  int64_t count = 0;
  for (const TensorRow& row : tensor_table(config))
    if (row.piece != TensorPiece::kScales)  // scales are no parameters
      count += row.spec.numel() * values_per_element(row.format);
  return count;
}

class Table {
 public:
  explicit Table(const MemoryPlan& plan) : plan_(plan) {}

  void print(const std::string& name, const ModelConfig& config) const {
    title(name, config);
    line("memory", plan_.memory_bytes);
    if (plan_.budget_bytes != plan_.memory_bytes) line("that may be used", plan_.budget_bytes, true);
    part("weights", plan_.weight_bytes, plan_.weights);
    if (plan_.stored_bytes < plan_.weight_bytes * 9 / 10)
      text(strf("  {} in the checkpoint, widened to bf16 on the GPU", byte_string(plan_.stored_bytes)));
    part(plan_.is_cpu ? "scratch" : "workspace", plan_.workspace.bytes, plan_.workspace.rows);
    if (plan_.driver.bytes > 0) part("driver, about", plan_.driver.bytes, plan_.driver.rows);
    line("cache", plan_.cache_bytes(), true);
    token_line("K and V", plan_.kv_token_bytes, plan_.kv_dtype);
    token_line("index keys", plan_.index_token_bytes, plan_.index_dtype);
    line("  a block of 128 tokens", plan_.block_bytes());
    bar();
    const char* const of = plan_.grid.dp > 1 ? " of each group" : "";
    row("tokens in the cache",
        strf("{:>14}  in {} blocks{}", grouped(plan_.cache_tokens()), grouped(plan_.num_blocks), of));
    row("longest request", strf("{:>14}  tokens", grouped(plan_.longest_request())));
    row(strf("requests of {} tokens", grouped(plan_.max_model_len)),
        strf("{:>14}  at the same time", grouped(plan_.full_requests())));
    if (plan_.pinned_bytes > 0)
      row("page-locked host memory", strf("{:>14}", byte_string(plan_.pinned_bytes)));
    for (size_t i = 0; i < plan_.advice.size(); ++i) text((i == 0 ? "\n" : "") + plan_.advice[i]);
  }

 private:
  static constexpr int kNameWidth = 32, kBarWidth = 60;

  static void text(const std::string& line) { std::fputs((line + "\n").c_str(), stdout); }
  static void row(const std::string& name, const std::string& value) {
    text(strf("{:<{}}{}", name, kNameWidth, value));
  }

  void title(const std::string& name, const ModelConfig& config) const {
    const auto sparse = std::count(config.layer_is_sparse.begin(), config.layer_is_sparse.end(), 1);
    text(strf("{}: {:.4g} B parameters, {} layers, {} of them block-sparse; {}, up to {} tokens", name,
              static_cast<double>(num_parameters(config)) / 1e9, config.num_layers, sparse,
              config.quant == QuantFormat::kNone ? short_name_of(config.dtype) : name_of(config.quant),
              grouped(config.max_positions)));
    if (plan_.is_cpu)
      text("this machine, CPU\n");
    else
      text(strf("{} x {}{}\n", plan_.grid.world(), plan_.device,
                plan_.grid.world() > 1 ? strf(", {}; each rank:", describe(plan_.grid)) : ""));
  }
  void line(const std::string& name, int64_t bytes, bool share = false) const {
    const double part = 100.0 * static_cast<double>(bytes) / static_cast<double>(plan_.budget_bytes);
    row(name, strf("{:>14}{}", byte_string(bytes), share ? strf("{:>8.1f}%", part) : ""));
  }
  void part(const char* name, int64_t bytes, const std::vector<LedgerRow>& rows) const {
    line(name, bytes, true);
    for (const LedgerRow& detail : rows) line("  " + std::string(detail.name), detail.bytes);
  }
  static void token_line(const std::string& name, int64_t bytes, DType dtype) {
    row("  " + name, strf("{:>12} B  a token, {}", grouped(bytes), short_name_of(dtype)));
  }

  // How the memory is shared out, as a picture.
  void bar() const {
    const auto cells = [&](int64_t bytes) {
      const double share = static_cast<double>(bytes) / static_cast<double>(plan_.memory_bytes);
      return static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * kBarWidth));
    };
    const int weights = cells(plan_.weight_bytes), workspace = cells(plan_.fixed_bytes()),
              used = cells(plan_.used_bytes());
    std::string picture = "\n";
    for (int i = 0; i < kBarWidth; ++i)
      picture += i < weights ? "█" : i < workspace ? "▓" : i < used ? "▒" : "·";
    text(picture);
    text(strf("█ weights  ▓ {}  ▒ cache  · free\n", plan_.is_cpu ? "scratch" : "workspace, driver"));
  }

  const MemoryPlan& plan_;
};

void print_json(const std::string& name, const ModelConfig& config, const MemoryPlan& plan) {
  JsonWriter json(JsonWriter::Style::kSpaced);
  const auto rows = [&](const char* key, const std::vector<LedgerRow>& list) {
    json.key(key).begin_object();
    for (const LedgerRow& row : list) json.key(row.name).integer(row.bytes);
    json.end_object();
  };
  json.begin_object().key("model").string(name).key("parameters").integer(num_parameters(config));
  json.key("device").string(plan.device).key("ranks").integer(plan.grid.world());
  json.key("tensor_parallel_size").integer(plan.grid.tp).key("data_parallel_size").integer(plan.grid.dp);
  json.key("expert_parallel").boolean(plan.grid.expert_parallel);
  json.key("memory_bytes").integer(plan.memory_bytes).key("budget_bytes").integer(plan.budget_bytes);
  json.key("weight_bytes").integer(plan.weight_bytes).key("stored_weight_bytes").integer(plan.stored_bytes);
  rows("weights", plan.weights);
  json.key("workspace_bytes").integer(plan.workspace.bytes);
  rows("workspace", plan.workspace.rows);
  if (!plan.is_cpu) {
    json.key("driver_bytes").integer(plan.driver.bytes);
    rows("driver", plan.driver.rows);
    json.key("pinned_host_bytes").integer(plan.pinned_bytes);
  }
  json.key("kv_cache_dtype").string(short_name_of(plan.kv_dtype));
  json.key("index_cache_dtype").string(short_name_of(plan.index_dtype));
  json.key("activation_dtype")
      .string(plan.rounds_tokens ? "fp8" : short_name_of(plan.is_cpu ? config.dtype : DType::kBF16));
  json.key("kv_token_bytes").integer(plan.kv_token_bytes);
  json.key("index_token_bytes").integer(plan.index_token_bytes);
  json.key("block_bytes").integer(plan.block_bytes()).key("blocks").integer(plan.num_blocks);
  json.key("cache_bytes").integer(plan.cache_bytes()).key("cache_tokens").integer(plan.cache_tokens());
  json.key("max_model_len").integer(plan.max_model_len);
  json.key("longest_request").integer(plan.longest_request());
  json.key("full_requests").integer(plan.full_requests()).key("fits").boolean(plan.fits);
  json.key("advice").begin_array();
  for (const std::string& sentence : plan.advice) json.string(sentence);
  json.end_array().end_object();
  std::puts(json.text().c_str());
}

}  // namespace

Result<int> run_plan(const PlanCommandOptions& o) {
  if (!o.slo.empty()) return plan_fleet(o);
  if (o.model.empty()) return Error{Errc::kInvalidArgument, "plan needs a MODEL, or --slo and --cost-model"};
  if (!o.cost_models.empty()) return Error{Errc::kInvalidArgument, "--cost-model: only with --slo"};
  const NamedConfig model = SPARROW_TRY(find_config(o));
  MemoryPlanOptions options{.gpus = o.gpus.value_or(o.grid.world()),
                            .num_nodes = o.num_nodes,
                            .peer_memory = !o.no_peer_memory,
                            .gpu = o.gpu,
                            .max_model_len = o.max_model_len,
                            .kv_cache_dtype = o.kv_cache_dtype,
                            .index_cache_dtype = o.index_cache_dtype,
                            .activation_dtype = o.activation_dtype,
                            .batch_invariant = o.batch_invariant,
                            .gpu_memory_utilization = o.gpu_memory_utilization,
                            .vision = !o.language_model_only,
                            .max_step_sequences = o.max_step_sequences,
                            .max_step_tokens = o.max_step_tokens,
                            .machine_bytes = machine_bytes(),
                            .threads = ThreadPool::default_size(),
                            .isa = ops::detect_cpu_isa()};
  if (!o.gpus) options.grid = o.grid;
  if (o.gpus && o.grid.expert_parallel) {
    options.grid = SPARROW_TRY(find_grid(model.config, options));
    options.grid->expert_parallel = true;
  }
  if (!o.kv_cache_memory.empty())
    options.kv_cache_bytes = SPARROW_TRY(parse_byte_size(o.kv_cache_memory, "--kv-cache-memory"));
  const MemoryPlan plan = SPARROW_TRY(make_memory_plan(model.config, options));
  if (o.json)
    print_json(model.name, model.config, plan);
  else
    Table(plan).print(model.name, model.config);
  return plan.fits ? 0 : 1;
}

}  // namespace sparrow::cli
