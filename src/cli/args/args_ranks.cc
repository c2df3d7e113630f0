// SPDX-License-Identifier: Apache-2.0
// The flags about several GPUs and nodes. The names are vLLM's where vLLM has them.
#include <CLI/CLI.hpp>

#include "cli/args/args_parts.h"

namespace sparrow::cli {
namespace {

const char* const kGroup = "Several GPUs";
constexpr int kMaxRanks = 1024, kMaxJoinSeconds = 86'400;

}  // namespace

void add_grid(CLI::App* command, Grid& grid) {
  const auto number = [&](const char* flag, int& value, const char* help) {
    command->add_option(flag, value, help)->check(CLI::Range(1, kMaxRanks))->type_name("N")->group(kGroup);
  };
  number("--tensor-parallel-size,--tp", grid.tp,
         "GPUs that share each layer: more for faster answers, 1 to 8 (default 1)");
  number("--data-parallel-size,--dp", grid.dp,
         "Groups of those, each with requests of its own: more for more answers at once (default 1)");
  command
      ->add_flag("--enable-expert-parallel,--expert-parallel", grid.expert_parallel,
                 "Whole experts on each GPU instead of a slice of all: for several nodes")
      ->group(kGroup);
}

void add_no_peer_memory(CLI::App* command, bool& value) {
  command
      ->add_flag(
          "--no-peer-memory", value,
          "GPUs of a node exchange over NCCL instead of each other's memory, as those of several nodes do")
      ->group(kGroup);
}

void add_ranks(CLI::App* command, RankFlags& o) {
  add_grid(command, o.grid);
  const auto number = [&](const char* flag, std::optional<int>& value, int least, const char* help) {
    command->add_option(flag, value, help)
        ->check(CLI::Range(least, kMaxRanks))
        ->type_name("N")
        ->group(kGroup);
  };
  number("--nnodes", o.num_nodes, 1,
         "Nodes: run this once on each, and it starts the GPUs there (default 1)");
  number("--node-rank", o.node_rank, 0, "Which of them this is, from 0; node 0 answers requests");
  command
      ->add_option(
          "--rendezvous", o.rendezvous,
          "Where nodes meet: an address of node 0 and a free port (default: MASTER_ADDR, MASTER_PORT)")
      ->type_name("HOST:PORT")
      ->group(kGroup);
  command
      ->add_option("--token-file", o.token_file,
                   "Secret that all ranks know (default: SPARROW_TOKEN); needed with several nodes")
      ->type_name("FILE")
      ->group(kGroup);
  command
      ->add_option("--join-timeout", o.join_timeout_seconds,
                   "How long ranks wait for each other at the start (default 60)")
      ->check(CLI::Range(1, kMaxJoinSeconds))
      ->type_name("SECONDS")
      ->group(kGroup);
  number("--rank", o.rank, 0,
         "This process is one GPU's alone, and this one (default: mpirun, srun, torchrun say)");
  number("--world-size", o.world_size, 1, "With --rank: how many there are");
  command->add_flag("--share-gpu", o.share_gpu, "Several ranks may have one GPU: for tests, slow")
      ->group(kGroup);
  add_no_peer_memory(command, o.no_peer_memory);
}

}  // namespace sparrow::cli
