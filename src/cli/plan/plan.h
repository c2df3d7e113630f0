// SPDX-License-Identifier: Apache-2.0
// `sparrow plan`: its options.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/simulate/load/workload.h"
#include "comm/grid.h"

namespace sparrow::cli {

struct PlanCommandOptions {
  std::string model;        // a folder, a config.json, or the name of a preset
  std::optional<int> gpus;  // default: those of the grid
  Grid grid;
  int num_nodes = 1;
  bool no_peer_memory = false;
  std::string gpu = "h200";
  int64_t max_model_len = 0;
  std::string kv_cache_dtype = "auto", index_cache_dtype = "auto", activation_dtype = "auto";
  bool batch_invariant = false, language_model_only = false;
  double gpu_memory_utilization = 0.9;
  int max_step_sequences = 256;
  int max_step_tokens = 0;
  std::string kv_cache_memory;
  std::string hf_overrides;
  bool json = false;

  // With a goal: how many instances of which layout answer a workload in time.
  std::string slo;  // "ttft=2s,itl=50ms"
  WorkloadOptions workload;
  std::vector<std::filesystem::path> cost_models;  // one for each layout to try
  std::string router = "prefix";
  int max_gpus = 1024;
};

// The exit code: 1 if the model does not fit.
Result<int> run_plan(const PlanCommandOptions& options);

}  // namespace sparrow::cli
