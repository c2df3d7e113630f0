// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "cli/args/args_parts.h"
#include "cli/bench/bench_step.h"

namespace sparrow::cli {

CLI::App* add_bench_step(CLI::App& app, BenchStepOptions& o) {
  CLI::App* command = app.get_subcommand("bench")->add_subcommand(
      "step", "One step of one GPU, part by part: time, bytes, operations, floor");
  command->add_option("--model", o.model, "Folder of the checkpoint")->type_name("DIR");
  command
      ->add_option("--preset", o.preset,
                   "Or a preset, such as m3, m3-mxfp8, m3-mxfp4: its shapes with random weights")
      ->type_name("NAME");
  add_grid(command, o.grid);
  command
      ->add_option("--rank", o.grid.rank,
                   "The model is cut for several GPUs, and this one's part runs alone (default 0)")
      ->check(CLI::Range(0, 1023))
      ->type_name("R")
      ->group("Several GPUs");
  command->add_flag_callback(
      "--no-comm", [] {}, "Accepted for clarity: ranks never exchange anything here");
  command->add_flag("--all-ranks", o.all_ranks,
                    "Run every rank of it on this GPU, one after the other, and sum over them; use --layers "
                    "where all do not fit");
  command->add_option("--layers", o.layers, "Only the first so many layers (default: all)")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  command->add_option("--phase", o.phase, "decode (default), prefill, or mixed: decodes beside one prompt")
      ->type_name("P");
  command->add_option("--batch", o.batch, "Requests in a step; several values with commas (default 1,8,64)")
      ->check(CLI::Range(1, 4096))
      ->delimiter(',')
      ->type_name("N,..");
  command->add_option("--context", o.context, "Tokens in the cache after the step (default 2048,32768)")
      ->check(CLI::Range(1, 1 << 24))
      ->delimiter(',')
      ->type_name("N,..");
  command->add_option("--chunk", o.chunk, "Prefill, mixed: new tokens of a prompt (default 8192)")
      ->check(CLI::Range(1, 65536))
      ->delimiter(',')
      ->type_name("N,..");
  command
      ->add_option("--prompt-context", o.prompt_context,
                   "Mixed: tokens of the prompt in the cache after the step (default 8192)")
      ->check(CLI::Range(1, 1 << 24))
      ->delimiter(',')
      ->type_name("N,..");
  command->add_option("--repeats", o.repeats, "Steps to time for each case (default 20)")
      ->check(CLI::Range(1, 10000))
      ->type_name("N");
  command->add_flag("--json", o.json, "Print one line of JSON per case instead of tables");
  command->add_option("--svg", o.svg, "Draw the timeline of the last case into a file")->type_name("FILE");
  add_load(command, o.load);
  command->footer(
      "Examples:\n"
      "  sparrow bench step --preset m3 --tensor-parallel-size 8 --batch 1,8,64 --context 2048,32768,131072\n"
      "  sparrow bench step --preset m3 --tensor-parallel-size 8 --phase prefill --batch 1 --context "
      "8192,16384\n"
      "  sparrow bench step --preset m3 --tensor-parallel-size 8 --phase mixed --batch 32 --context 4096 "
      "--chunk 1024\n"
      "  sparrow bench step --preset m3 --tensor-parallel-size 8 --all-ranks --layers 8 --batch 1,64\n"
      "  sparrow bench step --model /tmp/small --batch 64 --svg step.svg\n");
  return command;
}

}  // namespace sparrow::cli
