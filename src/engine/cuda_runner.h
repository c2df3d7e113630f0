// SPDX-License-Identifier: Apache-2.0
// CudaRunner: the text model on one GPU: its weights, cache, workspace and the graphs that replay decode
// steps. A step is enqueued and its ids are the only thing read back. Engine thread only. Programs built
// without CUDA have a create() that says so.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/model_runner.h"
#include "engine/schedule/step_times.h"

namespace sparrow {

// Whether there is a GPU that the kernels run on.
bool has_usable_gpu();

class CudaRunner {
 public:
  static Result<std::unique_ptr<CudaRunner>> create(const ModelConfig& config, const Weights& weights,
                                                    const RunnerOptions& options);
  ~CudaRunner();

  void copy_blocks(std::span<const BlockCopy> copies);
  void forward(const Batch& batch, Capture* capture);
  void start_draws(std::span<const DrawRequest> draws);
  std::vector<Draw> finish_draws();
  std::vector<std::optional<TokenLogprobs>> score(std::span<const PromptRow> rows);
  // Copies them to the host.
  Tensor logits();
  EngineInfo info() const;

  // Fills the cache with random numbers, and times a step on it. Its blocks may be any of the cache's.
  void fill_cache(uint64_t seed);
  StepTimes profile(const Batch& batch, int repeats);

 private:
  struct State;
  explicit CudaRunner(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sparrow
