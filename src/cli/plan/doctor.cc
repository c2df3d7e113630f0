// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/doctor.h"

#include <algorithm>
#include <cstdio>

#include "base/json/json_writer.h"
#include "base/threads/thread_pool.h"
#include "cli/args/byte_size.h"
#include "cli/load_model.h"
#include "cli/plan/memory_plan.h"
#include "cli/terminal/terminal_text.h"
#include "config/config.h"
#include "text/chat_template.h"

namespace sparrow::cli {
namespace {

using Level = Finding::Level;

const char* name_of(Level level) {
  return level == Level::kOk ? "ok" : level == Level::kWarn ? "warn" : "fail";
}

Finding examine_rope(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  std::string text = strf("theta {}, {} of {} channels turn", rope.theta, rope.rotary_dim, config.head_dim);
  if (rope.yarn) text += strf("; YaRN factor {} from {} positions", rope.factor, rope.original_max_positions);
  text += strf("; up to {} positions", config.max_positions);
  Finding finding{Level::kOk, "rope", std::move(text)};
  const auto reach = static_cast<double>(rope.original_max_positions) * rope.factor;
  if (rope.yarn && reach < static_cast<double>(config.max_positions)) {
    finding.level = Level::kWarn;
    finding.next =
        strf("YaRN reaches {} positions only: a larger factor, or a smaller max_position_embeddings",
             static_cast<int64_t>(reach));
  }
  return finding;
}

Finding examine_weights(const DoctorOptions& options) {
  const auto checkpoint = Checkpoint::open(
      options.model, {.prefault = false, .check_scales = false, .overrides = options.hf_overrides});
  if (checkpoint.ok())
    return {Level::kOk, "weights",
            strf("{} tensors, {}", checkpoint->num_tensors(),
                 byte_string(static_cast<int64_t>(checkpoint->weight_bytes())))};
  if (checkpoint.error().code == Errc::kNotFound)
    return {Level::kFail, "weights", checkpoint.error().message,
            "fetch the checkpoint's files, or run with --load-format dummy"};
  return {Level::kFail, "weights", checkpoint.error().message, "fetch the files again"};
}

std::vector<Finding> examine_text(const std::filesystem::path& dir, const ModelConfig& config) {
  std::vector<Finding> findings;
  const auto tokenizer = load_tokenizer(dir, config);
  if (!tokenizer.ok())
    findings.push_back({Level::kFail, "tokenizer", tokenizer.error().message, "fetch tokenizer.json again"});
  else if (!tokenizer.value())
    findings.push_back(
        {Level::kFail, "tokenizer", "no tokenizer.json", "serve needs the model's tokenizer files"});
  else
    findings.push_back({Level::kOk, "tokenizer", strf("{} ids", config.vocab_size)});
  const auto chat = ChatTemplate::load(dir);
  if (chat.ok())
    findings.push_back({Level::kOk, "chat template", "there"});
  else if (chat.error().code == Errc::kNotFound)
    findings.push_back(
        {Level::kWarn, "chat template", "none: /v1/chat/completions will refuse", "--chat-template FILE"});
  else
    findings.push_back({Level::kFail, "chat template", chat.error().message, "--chat-template FILE"});
  return findings;
}

Finding examine_fit(const ModelConfig& config) {
  const auto plan = make_memory_plan(config, {.gpu = "cpu",
                                              .machine_bytes = machine_bytes(),
                                              .threads = ThreadPool::default_size(),
                                              .isa = ops::detect_cpu_isa()});
  if (!plan.ok()) return {Level::kFail, "memory for it", plan.error().message};
  const std::string text =
      strf("weights {}, cache {} for {} tokens, scratch {}", byte_string(plan->weight_bytes),
           byte_string(plan->cache_bytes()), plan->cache_tokens(), byte_string(plan->workspace.bytes));
  if (plan->fits) return {Level::kOk, "memory for it", text};
  return {Level::kWarn, "memory for it", plan->advice.empty() ? text : plan->advice.front(),
          "sparrow plan shows what it takes, on GPUs as well"};
}

}  // namespace

Finding examine_grids(const ModelConfig& config, int gpus, int64_t gpu_bytes) {
  Finding finding{Level::kOk, "on its GPUs", ""};
  bool fits = false;
  for (const Grid& grid : supported_grids(config, gpus)) {
    const auto plan =
        make_memory_plan(config, {.gpus = gpus, .grid = grid, .gpu = strf("{}M", gpu_bytes >> 20)});
    finding.text += strf("{}{}: ", finding.text.empty() ? "" : "; ", describe(grid));
    if (!plan.ok())
      finding.text += plan.error().message;
    else if (!plan->fits)
      finding.text += "does not fit";
    else
      finding.text += strf("{} tokens in the cache", grouped(grid.dp * plan->cache_tokens()));
    fits = fits || (plan.ok() && plan->fits);
  }
  if (finding.text.empty()) finding.text = validate(config, {.tp = gpus}).error().message;
  if (fits) return finding;
  finding.level = Level::kWarn;
  finding.next = strf("sparrow plan MODEL --gpus {} shows what it takes, and what would fit", gpus);
  return finding;
}

namespace {

void print(const std::vector<Finding>& findings) {
  constexpr int kTopicWidth = 15;
  for (const Finding& f : findings) {
    std::fputs(strf("{:<6}{:<{}}{}\n", name_of(f.level), f.topic, kTopicWidth, terminal_line(f.text)).c_str(),
               stdout);
    if (!f.next.empty()) std::fputs(strf("{:<6}{:<{}}-> {}\n", "", "", kTopicWidth, f.next).c_str(), stdout);
  }
  const auto count = [&](Level level) {
    return std::count_if(findings.begin(), findings.end(),
                         [&](const Finding& f) { return f.level == level; });
  };
  std::fputs(
      strf("\n{} ok, {} to look at, {} failed\n", count(Level::kOk), count(Level::kWarn), count(Level::kFail))
          .c_str(),
      stdout);
}

void print_json(const std::vector<Finding>& findings, bool failed) {
  JsonWriter json(JsonWriter::Style::kSpaced);
  json.begin_object().key("ok").boolean(!failed).key("findings").begin_array();
  for (const Finding& f : findings) {
    json.begin_object().key("level").string(name_of(f.level)).key("topic").string(f.topic);
    json.key("text").string(f.text).key("next").string(f.next).end_object();
  }
  json.end_array().end_object();
  std::puts(json.text().c_str());
}

}  // namespace

std::vector<Finding> examine_model(const DoctorOptions& options) {
  const auto config = model_config(options.model, options.hf_overrides);
  if (!config.ok())
    return {{Level::kFail, "model", config.error().message, "give the folder of a MiniMax-M3 checkpoint"}};
  const auto sparse = std::count(config->layer_is_sparse.begin(), config->layer_is_sparse.end(), 1);
  const char* const quantised = config->quant == QuantFormat::kMxfp8   ? ", linear layers in MXFP8"
                                : config->quant == QuantFormat::kMxfp4 ? ", experts in MXFP4"
                                : config->quant == QuantFormat::kMxfp4Mxfp8
                                    ? ", experts in MXFP4, other linear layers in MXFP8"
                                    : "";
  std::vector<Finding> findings = {
      {Level::kOk, "model",
       strf("{}: {} layers, {} of them block-sparse, {} of {} experts{}", options.model.string(),
            config->num_layers, sparse, config->experts_per_token, config->num_experts, quantised)}};
  findings.push_back(examine_rope(config.value()));
  findings.push_back(examine_weights(options));
  for (Finding& f : examine_text(options.model, config.value())) findings.push_back(std::move(f));
  findings.push_back(examine_fit(config.value()));
  if (const GpuCount count = count_gpus(); count.gpus > 0)
    findings.push_back(examine_grids(config.value(), count.gpus, count.bytes));
  return findings;
}

std::vector<Finding> examine(const DoctorOptions& options) {
  std::vector<Finding> findings = examine_machine(options.root);
  for (Finding& f : examine_gpus(options.root)) findings.push_back(std::move(f));
  findings.push_back(examine_port(options.host, options.port));
  if (options.model.empty()) return findings;
  for (Finding& f : examine_model(options)) findings.push_back(std::move(f));
  return findings;
}

Result<int> run_doctor(const DoctorOptions& options) {
  const std::vector<Finding> findings = examine(options);
  const bool failed =
      std::any_of(findings.begin(), findings.end(), [](const Finding& f) { return f.level == Level::kFail; });
  if (options.json)
    print_json(findings, failed);
  else
    print(findings);
  return failed ? 1 : 0;
}

}  // namespace sparrow::cli
