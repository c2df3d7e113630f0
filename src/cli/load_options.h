// SPDX-License-Identifier: Apache-2.0
// The flags about a model, as given to the commands that run one.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace sparrow::cli {

struct LoadOptions {
  std::string hf_overrides;                // JSON that changes config.json; empty: nothing
  std::string load_format = "auto";        // "auto": the checkpoint; "dummy": random weights, none are read
  std::string kv_cache_dtype = "auto";     // of K and V: "auto", "bfloat16", "fp8"; see cache_types()
  std::string index_cache_dtype = "auto";  // of index keys, likewise
  std::string activation_dtype = "auto";   // of prompts: "auto", "bfloat16", "fp8"; see rounds_tokens()
  // "cpu", "cuda", "sim" (no model: steps take the time that cost_model says); "auto" until resolve_device()
  // has looked.
  std::string device = "auto";
  std::filesystem::path cost_model;         // with "sim", see CostModel
  std::optional<double> sim_output_tokens;  // with "sim": of an answer, on average; 200 unless it is said
  std::string isa = "auto";  // instruction set of a CPU: "avx2", "avx512", "avx512-bf16", "amx"
  std::optional<double> gpu_memory_utilization;  // share of the GPU's memory; none: the command's own
  bool batch_invariant = false;                  // on a GPU; a CPU always is
  bool vision = false;                           // the tower's weights are wanted
};

}  // namespace sparrow::cli
