// SPDX-License-Identifier: Apache-2.0
// The command lines of `sparrow plan` and `sparrow doctor`, and the flags about a model that several commands
// share.
#include <CLI/CLI.hpp>
#include <set>
#include <string>
#include <vector>

#include "cli/args/args_parts.h"

namespace sparrow::cli {

void add_load(CLI::App* command, LoadOptions& o) {
  const char* group = "Model";
  add_overrides(command, o.hf_overrides);
  command
      ->add_option("--load-format", o.load_format,
                   "auto (default): the checkpoint's weights; dummy: random ones in config.json's shapes")
      ->type_name("FORMAT")
      ->group(group);
  command
      ->add_option("--kv-cache-dtype", o.kv_cache_dtype,
                   "K and V: auto (default: the model's type), bfloat16 or fp8 (on a GPU only)")
      ->type_name("TYPE")
      ->group(group);
  command
      ->add_option(
          "--index-cache-dtype", o.index_cache_dtype,
          "Index keys, likewise; fp8 halves what long contexts read, and selects other blocks at times")
      ->type_name("TYPE")
      ->group(group);
  command
      ->add_option(
          "--activation-dtype", o.activation_dtype,
          "Prompts' tokens in products: auto (default: bfloat16), bfloat16 or fp8 (lossy, and faster "
          "prefill; MXFP8 weights on a GPU only)")
      ->type_name("TYPE")
      ->group(group);
  command
      ->add_option("--device", o.device,
                   "auto (default: a GPU if there is one), cpu, cuda, or sim: no model runs,\n"
                   "steps take the time that --cost-model says, and answers are random")
      ->type_name("DEVICE")
      ->group(group);
  command
      ->add_option("--cost-model", o.cost_model, "With --device sim: how long steps take (see docs/fleet.md)")
      ->type_name("FILE")
      ->group(group);
  command
      ->add_option("--sim-output-tokens", o.sim_output_tokens,
                   "With --device sim: tokens of an answer that nothing else ends, on average (default 200)")
      ->type_name("N")
      ->group(group);
  command
      ->add_option("--isa", o.isa,
                   "CPU kernels: auto (default: the best the machine has), avx2, avx512, avx512-bf16 or amx")
      ->type_name("SET")
      ->group(group);
  command
      ->add_option(
          "--gpu-memory-utilization", o.gpu_memory_utilization,
          "Share of the GPU's memory for weights, workspace and cache (default 0.9; bench step 0.92)")
      ->type_name("U")
      ->group(group);
  command
      ->add_flag("--batch-invariant", o.batch_invariant,
                 "The same output to the bit, whatever else runs (always so on a CPU; slower on a GPU)")
      ->group(group);
}

void add_overrides(CLI::App* command, std::string& overrides) {
  command
      ->add_option("--hf-overrides", overrides,
                   "JSON that changes config.json; the text model's fields go into \"text_config\"")
      ->check([](const std::string& text) { return text.empty() ? "must be JSON, got nothing" : ""; })
      ->type_name("JSON")
      ->group("Model");
}

namespace {

void add_goal(CLI::App* command, PlanCommandOptions& o) {
  const char* group = "Instances for a workload, by simulation";
  const std::vector<CLI::Option*> before = command->get_options();
  CLI::Option* const goal =
      command
          ->add_option(
              "--slo", o.slo,
              "The goal, such as ttft=2s,itl=50ms: most time to the first token and between two, of 95%\n"
              "of them (percentile=99: of 99%)")
          ->type_name("GOAL")
          ->group(group);
  command->add_option("--cost-model", o.cost_models, "Layouts to try, see sparrow simulate")
      ->type_name("FILE")
      ->group(group);
  add_workload(command, o.workload, group);
  command->add_option("--router", o.router, "As sparrow simulate has them (default prefix)")
      ->type_name("NAME")
      ->group(group);
  command->add_option("--max-gpus", o.max_gpus, "Give up beyond so many (default 1024)")
      ->check(CLI::Range(1, 1 << 20))
      ->type_name("N")
      ->group(group);
  // An option that would be ignored is a mistake. Of those about memory a few say something here, too.
  const std::set<std::string> both = {"--help", "--model", "--json", "--max-num-seqs",
                                      "--max-num-batched-tokens"};
  for (CLI::Option* option : before)
    if (!both.contains(option->get_name())) goal->excludes(option);
  for (CLI::Option* option : command->get_options())
    if (option->get_group() == group && option != goal) option->needs(goal);
}

}  // namespace

CLI::App* add_plan(CLI::App& app, PlanCommandOptions& o) {
  CLI::App* command = app.add_subcommand("plan", "Show how much memory a model needs, and what fits");
  const auto number = [&](const char* flag, auto& value, const char* help, int64_t most = int64_t{1} << 30) {
    command->add_option(flag, value, help)->check(CLI::Range(int64_t{1}, most))->type_name("N");
  };
  command
      ->add_option("model,--model", o.model,
                   "Folder, config.json, or m3, m3-mxfp8, m3-mxfp4, m3-mxfp4-mxfp8, m3-layer, small, tiny; "
                   "not with --slo")
      ->type_name("MODEL");
  add_grid(command, o.grid);
  command->add_option("--gpus", o.gpus, "So many GPUs, as is fastest for one request, instead of sizes")
      ->check(CLI::Range(1, 1024))
      ->type_name("N")
      ->group("Several GPUs")
      ->excludes("--tensor-parallel-size")
      ->excludes("--data-parallel-size");
  command->add_option("--nnodes", o.num_nodes, "Nodes that they are on (default 1)")
      ->check(CLI::Range(1, 1024))
      ->type_name("N")
      ->group("Several GPUs");
  add_no_peer_memory(command, o.no_peer_memory);
  command->add_option("--gpu", o.gpu, "h100, h800, h20, h200 (default), b200, a size such as 96G, or cpu")
      ->type_name("KIND");
  number("--max-model-len", o.max_model_len, "Most tokens of a prompt and its answer (default: the model's)");
  const auto type = [&](const char* flag, std::string& value, const char* help) {
    command->add_option(flag, value, help)->type_name("TYPE");
  };
  type("--kv-cache-dtype", o.kv_cache_dtype, "K and V: auto (default: the model's type), bfloat16 or fp8");
  type("--index-cache-dtype", o.index_cache_dtype, "Index keys, likewise");
  type("--activation-dtype", o.activation_dtype,
       "Prompts' tokens in products: auto (default: bfloat16), bfloat16 or fp8 (lossy)");
  command->add_flag("--batch-invariant", o.batch_invariant,
                    "For output that is the same to the bit whatever else runs: a GPU needs more memory");
  command->add_flag("--language-model-only", o.language_model_only,
                    "Without the vision tower, as serve with the same flag (on a GPU)");
  command
      ->add_option("--gpu-memory-utilization", o.gpu_memory_utilization,
                   "Share of a GPU's memory that may be used (default 0.9)")
      ->check(number_in(0.01, 1))
      ->type_name("U");
  number("--max-num-seqs", o.max_step_sequences, "Most sequences in one step (default 256)",
         kMostStepSequences);
  number("--max-num-batched-tokens", o.max_step_tokens, "Most tokens in one step (default 8192; cpu: 512)");
  command->add_option("--kv-cache-memory", o.kv_cache_memory, "Size of the cache (default: what is left)")
      ->type_name("SIZE");
  add_overrides(command, o.hf_overrides);
  command->add_flag("--json", o.json, "Print one line of JSON instead of a table");
  add_goal(command, o);
  command->footer(
      "Examples:\n"
      "  sparrow plan m3 --gpus 8 --max-model-len 131072\n"
      "  sparrow plan m3-mxfp8 --tensor-parallel-size 4 --data-parallel-size 2\n"
      "  sparrow plan m3-mxfp4 --gpus 2 --kv-cache-dtype fp8\n"
      "  sparrow plan --workload agents --users 200 --slo ttft=2s,itl=50ms --cost-model bench/cost/*.json\n"
      "  sparrow plan /models/m3/config.json --gpus 8 --gpu h20 --kv-cache-dtype fp8\n"
      "  sparrow plan /tmp/small --gpu cpu --json\n"
      "\nExit code 1: it does not fit. No weights are read.\n");
  return command;
}

CLI::App* add_doctor(CLI::App& app, DoctorOptions& o) {
  CLI::App* command = app.add_subcommand("doctor", "Look for problems with this machine, or with a model");
  command->add_option("model,--model", o.model, "Folder of a checkpoint to check too")
      ->check([](const std::string& model) { return model.empty() ? "must not be empty" : ""; })
      ->type_name("MODEL");
  command->add_option("--host", o.host, "Address a server would listen on (default 127.0.0.1)")
      ->type_name("ADDR");
  command->add_option("--port", o.port, "Port a server would listen on (default 8000)")
      ->check(CLI::Range(0, 65535))
      ->type_name("N");
  add_overrides(command, o.hf_overrides);
  command->add_flag("--json", o.json, "Print one line of JSON instead of a list");
  command->footer(
      "Examples:\n"
      "  sparrow doctor\n"
      "  sparrow doctor /models/m3 --port 9000\n"
      "\nReads headers, no weights. Exit code 1: something failed.\n");
  return command;
}

}  // namespace sparrow::cli
