// SPDX-License-Identifier: Apache-2.0
// `sparrow simulate`: its options.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/simulate/load/workload.h"

namespace sparrow::cli {

struct SimulateOptions {
  std::filesystem::path cost_model;
  WorkloadOptions workload;
  std::vector<int> instances = {1};
  std::vector<std::string> routers = {"round-robin"};
  int64_t cache_tokens = 0;  // 0: as the cost model says
  int max_step_tokens = 8192, max_step_sequences = 256;
  std::filesystem::path json, svg;  // files to write; empty: none

  // Instead of a simulation: a cost model from records of `bench step --json`, or how far it is from them.
  std::vector<std::filesystem::path> fit, validate;
  std::filesystem::path exchange;  // fit: times of sums over ranks
  int ranks = 1, exchanges = 121;  // fit: these sums in a step
  std::string name;                // fit
};
Status run_simulate(const SimulateOptions& options);

}  // namespace sparrow::cli
