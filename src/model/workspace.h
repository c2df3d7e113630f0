// SPDX-License-Identifier: Apache-2.0
// Workspace: what a step needs beside weights and cache, from the configuration alone, so that what is
// planned and what is allocated come from one place.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "config/config.h"
#include "device/exec.h"
#include "model/ledger.h"
#include "model/sharding.h"

namespace sparrow {

// The largest step.
struct StepLimits {
  int64_t max_tokens = 0;
  int64_t max_sequences = 0;  // also the rows of logits
  int64_t max_context = 0;    // tokens of the longest sequence
};

struct Workspace {
  std::vector<LedgerRow> rows;  // in the order of a step
  int64_t bytes = 0;

  // Bytes of the row called `name`; it exists.
  int64_t of(std::string_view name) const;
};

// What one rank takes on a GPU, each buffer a multiple of 256 bytes. Error: a shape that the GPU kernels do
// not take.
Result<Workspace> gpu_workspace(const ModelConfig& config, const ParallelConfig& parallel,
                                const StepLimits& step);

// What the attention kernels for Hopper keep for themselves: the largest terms of msa::gpu::Plan's workspace,
// without those that stay below a hundredth.
int64_t gpu_attention_bytes(const ModelConfig& config, int query_heads, int kv_heads, const StepLimits& step);

// Scratch memory on the CPU with that instruction set and so many threads: no less than a step takes, and not
// much more.
Workspace cpu_workspace(const ModelConfig& config, const StepLimits& step, CpuIsa isa, int threads);

}  // namespace sparrow
