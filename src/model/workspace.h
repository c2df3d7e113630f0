// SPDX-License-Identifier: Apache-2.0
// Workspace: what a step of the text model needs beside weights and cache, from the configuration alone.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "config/config.h"
#include "device/arena.h"
#include "device/exec.h"
#include "model/ledger.h"
#include "model/sharding.h"
#include "model/step_buffers.h"

namespace sparrow {

// The largest step on a CPU.
struct StepLimits {
  int64_t max_step_tokens = 0;
  int64_t max_step_sequences = 0;  // also the rows of logits
  int64_t max_context = 0;         // tokens of the longest sequence
};

struct Workspace {
  std::vector<LedgerRow> rows;  // in the order of a step
  int64_t bytes = 0;

  void add(std::string_view name, int64_t bytes_of_row);
  // Bytes of the row called `name`; it exists.
  int64_t of(std::string_view name) const;
};

// What CudaTextModel allocates for one rank on a Hopper card with so many multiprocessors, to the byte: its
// own layout is counted. Error: a shape that the GPU kernels do not take.
Result<Workspace> gpu_workspace(const ModelConfig& config, const Grid& grid, const GpuStepLimits& limits,
                                int num_sms);

// Scratch memory on the CPU with that instruction set and so many threads: no less than a step takes, and not
// much more.
Workspace cpu_workspace(const ModelConfig& config, const StepLimits& step, CpuIsa isa, int threads);

}  // namespace sparrow
