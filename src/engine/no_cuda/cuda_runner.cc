// SPDX-License-Identifier: Apache-2.0
// CudaRunner of a program that was built without CUDA: there is none.
#include "engine/cuda_runner.h"

namespace sparrow {

struct CudaRunner::State {};

Result<std::unique_ptr<CudaRunner>> CudaRunner::create(const ModelConfig&, const Weights&,
                                                       const RunnerOptions&) {
  return Error{Errc::kUnsupported,
               "this program was built without CUDA: build it where nvcc is, or use --device cpu"};
}

bool has_usable_gpu() {
  return false;
}

CudaRunner::~CudaRunner() = default;
void CudaRunner::copy_blocks(std::span<const BlockCopy>) {}
void CudaRunner::forward(const Batch&, Capture*) {}
void CudaRunner::start_draws(std::span<const DrawRequest>) {}
std::vector<Draw> CudaRunner::finish_draws() {
  return {};
}
std::vector<std::optional<TokenLogprobs>> CudaRunner::score(std::span<const PromptRow>) {
  return {};
}
Tensor CudaRunner::logits() {
  return {};
}
EngineInfo CudaRunner::info() const {
  return {};
}
void CudaRunner::fill_cache(uint64_t) {}
StepTimes CudaRunner::profile(const Batch&, int) {
  return {};
}

}  // namespace sparrow
