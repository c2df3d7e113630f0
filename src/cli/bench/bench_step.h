// SPDX-License-Identifier: Apache-2.0
// `sparrow bench step`: its options.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/load_options.h"
#include "comm/grid.h"

namespace sparrow::cli {

struct BenchStepOptions {
  std::filesystem::path model;  // one of these
  std::string preset;
  Grid grid;                                 // the rank of it that runs
  bool all_ranks = false;                    // all of them, in turn, with what they exchange
  int layers = 0;                            // of the model, the first so many; 0: all
  std::string phase = "decode";              // "prefill", or "mixed": decodes beside one prompt
  std::vector<int> batch = {1, 8, 64};       // requests
  std::vector<int> context = {2048, 32768};  // tokens in the cache after the step
  std::vector<int> chunk = {8192};           // prefill, mixed: new tokens of a prompt
  std::vector<int> prompt_context = {8192};  // mixed: tokens of the prompt in the cache after the step
  int repeats = 20;
  bool json = false;
  std::filesystem::path svg;  // a picture of the last case's step; empty: none
  LoadOptions load{.device = "cuda"};
};
Status run_bench_step(const BenchStepOptions& options);

}  // namespace sparrow::cli
