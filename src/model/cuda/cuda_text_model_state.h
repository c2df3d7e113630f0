// SPDX-License-Identifier: Apache-2.0
// What a CudaTextModel is made of, for the files that implement it.
#pragma once

#include <algorithm>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

#include "model/cuda/cuda_text_model.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/moe/moe_parts.h"
#include "ops/cuda/mx/quantise_rows.h"
#include "ops/cuda/parts/part_rows.h"
#include "ops/cuda/router.h"
#include "ops/cuda/rows.h"

namespace sparrow {

using Bf16 = __nv_bfloat16;

struct CudaTextModel::State {
  State(const ModelConfig& config, const DeviceWeights& weights, const GpuStepLimits& limits)
      : config(config), weights(weights), limits(limits) {}

  // Whether ranks add up their parts; a rank that runs alone does not.
  bool is_group() const { return exchange && exchange->is_group(); }
  // Whether the logits of all ranks come together here.
  bool has_all_logits() const { return is_group() && exchange->leads(); }
  // The norm of one row is part of the router's kernel, where all experts are here.
  bool norm_in_router(const DeviceLayer& layer, int rows) const {
    return rows == 1 && !limits.batch_invariant && layer.num_experts > 0 && !is_group() &&
           layer.num_experts == config.num_experts;
  }
  // Where a product of so many rows finds them rounded; nowhere: it reads bf16.
  ops::cuda::E4m3Rows rounded_for(const ops::cuda::DeviceMatrix& w, int rows) const {
    const bool rounds = limits.rounds(rows) && w.format == MatrixFormat::kMxfp8;
    return rounds ? act.rounded : ops::cuda::E4m3Rows{};
  }
  // Where a product of so many parts puts its sum, in batch-invariant steps.
  ops::cuda::PartTree tree(int parts) const {
    ops::cuda::PartTree tree{.parts = parts};
    std::copy(std::begin(act.sums), std::end(act.sums), tree.slots);
    return tree;
  }
  // The residual is what ids stand for.
  void embed(const DeviceBatch& batch, cudaStream_t stream) const;
  // The residual takes delta in, but not in the first layer; normed is its norm, for the q/k/v product alone.
  void input_norm(const DeviceBatch& batch, int layer, cudaStream_t stream,
                  const StepObserver& observer) const;
  // The residual takes delta in; normed is its norm, before experts that of all groups' rows.
  void post_attention_norm(const DeviceBatch& batch, int layer, cudaStream_t stream,
                           const StepObserver& observer) const;
  // Either norm of a rank that has all sums.
  void sum_norm(const Bf16* weight, int rows, cudaStream_t stream) const;
  // Whether a layer leaves in delta its part of all groups' rows.
  bool has_experts(int layer) const { return layer >= 0 && weights.layers[layer].num_experts > 0; }
  // The rows that a layer's feed-forward runs.
  int feed_forward_rows(const DeviceBatch& batch, int layer) const;
  void final_norm(const DeviceBatch& batch, cudaStream_t stream, const StepObserver& observer) const;
  // Logits of rows of normed.
  void head(int first, int count, cudaStream_t stream, const StepObserver& observer);
  void project(const ops::cuda::DeviceMatrix& w, int rows, cudaStream_t stream) const;
  // selected, of blocks that the group's ranks score together; what they exchange for it.
  void select_shared(int rows, const CudaKvCache& cache, int layer, cudaStream_t stream,
                     const StepObserver& observer) const;
  void exchange_lists(int rows, int layer, cudaStream_t stream, const StepObserver& observer) const;
  // delta, or sums = attended times the output matrix.
  void output(const DeviceLayer& w, int rows, cudaStream_t stream) const;
  void route(const DeviceBatch& batch, int layer, cudaStream_t stream, const StepObserver& observer);
  void attention(const DeviceBatch& batch, const CudaKvCache& cache, int layer, cudaStream_t stream,
                 const StepObserver& observer);
  void feed_forward(const DeviceBatch& batch, int layer, cudaStream_t stream, const StepObserver& observer);
  void experts(int layer, int rows, cudaStream_t stream);
  void forward(const DeviceBatch& batch, const CudaKvCache& cache, cudaStream_t stream,
               const StepObserver& observer, std::span<const int32_t> captured_rows, Capture* capture);

  const ModelConfig& config;
  const DeviceWeights& weights;
  const GpuStepLimits limits;
  DeviceBuffer memory;
  StepBuffers<Bf16> act{};
  RankExchange* exchange = nullptr;  // of a rank of several
  std::unique_ptr<msa::gpu::Plan> plan;
  std::unique_ptr<ops::cuda::Gemm> gemm;
};

}  // namespace sparrow
