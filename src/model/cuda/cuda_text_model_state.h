// SPDX-License-Identifier: Apache-2.0
// What a CudaTextModel is made of, for the files that implement it.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/cuda/cuda_text_model.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/moe/moe.h"
#include "ops/cuda/router.h"
#include "ops/cuda/rows.h"

namespace sparrow {

using Bf16 = __nv_bfloat16;

struct CudaTextModel::State {
  State(const ModelConfig& config, const DeviceWeights& weights, const GpuStepLimits& limits)
      : config(config), weights(weights), limits(limits) {}

  // The norm of one row is part of the router's kernel.
  bool norm_in_router(const DeviceLayer& layer, int rows) const {
    return rows == 1 && !limits.batch_invariant && layer.num_experts > 0;
  }
  // The residual takes delta in; normed is its norm.
  void add_norm(const Bf16* weight, int rows, cudaStream_t stream) const;
  void route(const DeviceBatch& batch, int layer, cudaStream_t stream, const StepObserver& observer);
  void attention(const DeviceBatch& batch, const CudaKvCache& cache, int layer, cudaStream_t stream,
                 const StepObserver& observer);
  void feed_forward(const DeviceBatch& batch, int layer, cudaStream_t stream, const StepObserver& observer);
  void forward(const DeviceBatch& batch, const CudaKvCache& cache, cudaStream_t stream,
               const StepObserver& observer, std::span<const int32_t> captured_rows, Capture* capture);

  const ModelConfig& config;
  const DeviceWeights& weights;
  const GpuStepLimits limits;
  DeviceBuffer memory;
  StepBuffers<Bf16> act{};
  std::unique_ptr<msa::gpu::Plan> plan;
  std::unique_ptr<ops::cuda::Gemm> gemm;
};

}  // namespace sparrow
