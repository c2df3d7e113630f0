// SPDX-License-Identifier: Apache-2.0
// The command line of `sparrow simulate`.
#include <CLI/CLI.hpp>

#include "cli/args/args_parts.h"

namespace sparrow::cli {
namespace {

void add_cost_model(CLI::App* command, SimulateOptions& o) {
  const char* group = "Cost model";
  command
      ->add_option("--cost-model", o.cost_model,
                   "How long steps of an instance take; with --fit, the file to write")
      ->type_name("FILE")
      ->group(group);
  command->add_option("--fit", o.fit, "Make a cost model from what `bench step --json` printed")
      ->type_name("FILE")
      ->group(group);
  command->add_option("--validate", o.validate, "Compare the cost model with such records, step by step")
      ->type_name("FILE")
      ->group(group);
  command
      ->add_option("--exchange", o.exchange, "Fit: times of sums over ranks, as exchange_bench records them")
      ->type_name("FILE")
      ->group(group);
  command->add_option("--ranks", o.ranks, "Fit: GPUs of an instance, which share every step (default 1)")
      ->check(CLI::Range(1, 1024))
      ->type_name("N")
      ->group(group);
  command->add_option("--exchanges", o.exchanges, "Fit: sums over them in a step (default 121, as M3 has)")
      ->check(CLI::Range(0, 1 << 20))
      ->type_name("N")
      ->group(group);
  command->add_option("--name", o.name, "Fit: what the model is called")->type_name("TEXT")->group(group);
}

void add_fleet(CLI::App* command, SimulateOptions& o) {
  const char* group = "Fleet";
  command->add_option("--instances", o.instances, "Instances; several values with commas (default 1)")
      ->check(CLI::Range(1, 4096))
      ->delimiter(',')
      ->type_name("N,..")
      ->group(group);
  command
      ->add_option("--router", o.routers,
                   "round-robin (default), least-loaded, prefix-hash, prefix; several with commas")
      ->delimiter(',')
      ->type_name("NAME,..")
      ->group(group);
  command
      ->add_option("--cache-tokens", o.cache_tokens,
                   "Tokens that the cache of an instance holds (default: as the cost model says)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 36))
      ->type_name("N")
      ->group(group);
  command->add_option("--max-num-seqs", o.max_step_sequences, "Most sequences in one step (default 256)")
      ->check(CLI::Range(1, 1 << 20))
      ->type_name("N")
      ->group(group);
  command->add_option("--max-num-batched-tokens", o.max_step_tokens, "Most tokens in one step (default 8192)")
      ->check(CLI::Range(1, 1 << 20))
      ->type_name("N")
      ->group(group);
}

// An option that would be ignored is a mistake.
void add_exclusions(CLI::App* command) {
  CLI::Option* const fit = command->get_option("--fit");
  CLI::Option* const validate = command->get_option("--validate");
  fit->excludes(validate);
  validate->excludes("--cache-tokens");
  for (const char* name : {"--workload", "--requests", "--rate", "--users", "--seed", "--instances",
                           "--router", "--max-num-seqs", "--max-num-batched-tokens", "--json", "--svg"}) {
    fit->excludes(name);
    validate->excludes(name);
  }
  for (const char* name : {"--exchange", "--ranks", "--exchanges", "--name"})
    command->get_option(name)->needs(fit);
}

}  // namespace

void add_workload(CLI::App* command, WorkloadOptions& o, const char* group) {
  command
      ->add_option("--workload,--trace", o.kind,
                   "chat (default), agents, batch, or a file: a trace, one request per line")
      ->type_name("NAME")
      ->group(group);
  command->add_option("--requests", o.requests, "Requests (default 10000)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 25))
      ->type_name("N")
      ->group(group);
  command->add_option("--rate", o.rate, "Conversations that begin in a second (default 10)")
      ->check(CLI::Range(1e-6, 1e9))
      ->type_name("R")
      ->group(group);
  command
      ->add_option("--users", o.users,
                   "Instead: so many users, each of whom begins a conversation when the last one has ended")
      ->check(CLI::Range(1, 1 << 24))
      ->type_name("N")
      ->group(group)
      ->excludes("--rate");
  command->add_option("--seed", o.seed, "Seed of the workload (default 0)")->type_name("S")->group(group);
}

CLI::App* add_simulate(CLI::App& app, SimulateOptions& o) {
  CLI::App* command = app.add_subcommand(
      "simulate", "Many instances under a workload, on a virtual clock: throughput, latency, cache hits");
  add_workload(command, o.workload, "Workload");
  add_fleet(command, o);
  add_cost_model(command, o);
  command->add_option("--json", o.json, "Write the results there, too")->type_name("FILE");
  command->add_option("--svg", o.svg, "Draw how latencies are distributed")->type_name("FILE");
  add_exclusions(command);
  command->footer(
      "Examples:\n"
      "  sparrow simulate --cost-model bench/cost/h200-m3-mxfp8-tp8.json --workload chat --rate 20 "
      "--instances "
      "4\n"
      "  sparrow simulate --cost-model bench/cost/h200-m3-mxfp8-tp8.json --workload agents --users 200 "
      "--instances 2,4 \\\n"
      "      --router round-robin,least-loaded,prefix-hash,prefix --svg agents.svg\n"
      "  sparrow bench step --preset m3 --tensor-parallel-size 8 --json > steps.jsonl\n"
      "  sparrow simulate --fit steps.jsonl --ranks 8 --cache-tokens 600000 --cost-model mine.json\n"
      "\nThe scheduler and the prefix cache are those of `sparrow serve`; no model runs. A line of a trace:\n"
      "{\"arrival\": 1.5, \"prompt_tokens\": 900, \"output_tokens\": 120, \"session\": \"a\"}. Requests of a "
      "session continue\n"
      "each other. Instead of a session a line may have \"hash_ids\", one for each 512 tokens of its "
      "prompt; also known:\n"
      "timestamp (milliseconds), input_length, output_length.\n");
  return command;
}

}  // namespace sparrow::cli
