// SPDX-License-Identifier: Apache-2.0
// Parts of the command line that have a file of their own. Only args*.cc include this.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "cli/bench/bench_step.h"
#include "cli/chat/chat.h"
#include "cli/load_options.h"
#include "cli/plan/doctor.h"
#include "cli/plan/plan.h"
#include "cli/rank_flags.h"
#include "cli/serve/serve.h"
#include "cli/simulate/simulate.h"

namespace CLI {
class App;
}

namespace sparrow::cli {

// CLI11 reads larger ones, and negative ones, as some other number.
inline constexpr uint64_t kMaxSeed = INT64_MAX;

// What the attention's plan on a GPU takes, and more than a CPU has use for.
inline constexpr int64_t kMostStepSequences = 4096;

// For check(): a number within these bounds. CLI::Range lets NaN pass.
std::function<std::string(const std::string&)> number_in(double least, double most);

CLI::App* add_serve(CLI::App& app, ServeOptions& options);
CLI::App* add_chat(CLI::App& app, ChatOptions& options);
CLI::App* add_plan(CLI::App& app, PlanCommandOptions& options);
CLI::App* add_doctor(CLI::App& app, DoctorOptions& options);
CLI::App* add_simulate(CLI::App& app, SimulateOptions& options);
// What clients ask of a simulated fleet.
void add_workload(CLI::App* command, WorkloadOptions& options, const char* group);
// After `bench engine`, whose parent it joins.
CLI::App* add_bench_step(CLI::App& app, BenchStepOptions& options);

// --hf-overrides, alone and with the other flags of commands that run a model.
void add_overrides(CLI::App* command, std::string& overrides);
void add_load(CLI::App* command, LoadOptions& options);

// How ranks share a model, alone and with who they are and where they meet.
void add_grid(CLI::App* command, Grid& grid);
void add_ranks(CLI::App* command, RankFlags& options);
void add_no_peer_memory(CLI::App* command, bool& value);

}  // namespace sparrow::cli
