// SPDX-License-Identifier: Apache-2.0
// CudaTextModel: M3's forward pass on a GPU, for the part of it that one rank holds. Owns the activations of
// the largest step; launches and never synchronises, so that a step can be captured in a graph. Ranks of a
// group add up their parts in an exchange; one of them that runs alone, for measurements, computes what it
// would in the group and adds nothing.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "comm/grid.h"
#include "kv/cuda/cuda_kv_cache.h"
#include "model/cuda/device_weights.h"
#include "model/cuda/exchange/rank_exchange.h"
#include "model/step_buffers.h"
#include "model/text_model.h"
#include "ops/cuda/attention.h"

namespace sparrow {

// A group's part of a Batch as kernels read it: pointers into the device's copy, decodes and prefills apart,
// padded. Rows of decoding sequences come first; padding rows have slot -1.
struct DeviceBatch {
  int num_tokens = 0;                 // rows
  const int32_t* num_rows = nullptr;  // [groups] rows that are not padding, which comes last; nullptr: all
  const int32_t* ids = nullptr;       // [rows]
  // Rows of images: where their embeddings lie (ops/cuda/rows.h); none of them in steps without any.
  const __nv_bfloat16* features = nullptr;
  const int32_t* feature_rows = nullptr;      // [rows]
  const int64_t* slots = nullptr;             // [rows]
  msa::gpu::Step step;                        // positions, lengths and block tables of both parts
  const int32_t* logit_rows = nullptr;        // of all groups, one after the other, each in its group's rows
  int num_logits = 0;                         // of this group
  std::vector<int> group_rows, group_logits;  // of all groups, this one's among them; empty: there is one
};

// What a step is made of, as `bench step` reports it.
enum class StepPart : uint8_t {
  kNorm,
  kProjection,
  kStore,
  kIndex,
  kAttend,
  kDense,
  kOutput,
  kRouter,
  kExperts,
  kHead,
  kExchange,  // the sum over ranks, with the norm after it
  kOthers,    // what other ranks do meanwhile, where they take turns
  kEnd
};
const char* name_of(StepPart part);

// Called before each part of a step is launched, and at its end.
using StepObserver = std::function<void(StepPart part, int layer, cudaStream_t stream)>;

class CudaTextModel {
 public:
  // Weights are borrowed, and so is what a rank of several exchanges with.
  static Result<std::unique_ptr<CudaTextModel>> create(const ModelConfig& config,
                                                       const DeviceWeights& weights,
                                                       const GpuStepLimits& limits, const Grid& grid = {},
                                                       RankExchange* exchange = nullptr);
  ~CudaTextModel();

  // Chooses the products' algorithms by measurement. Once, before the first step.
  void tune(cudaStream_t stream);
  // What it chose. Ranks of a group take the first one's choice: what they hold twice has the same bits.
  Bytes choices() const;
  Status take_choices(std::span<const std::byte> choices);

  // Runs a step. The logits of its first max_logits rows stand in logits() afterwards.
  void forward(const DeviceBatch& batch, const CudaKvCache& cache, cudaStream_t stream,
               const StepObserver& observer = {});
  // The same with what a comparison wants to see, at these rows; synchronises.
  void forward_captured(const DeviceBatch& batch, const CudaKvCache& cache, cudaStream_t stream,
                        std::span<const int32_t> rows, Capture& capture);
  // Puts the logits of rows [first, first + count) of the last step's into logits(); count <= max_logits.
  void compute_logits(int first, int count, cudaStream_t stream);

  // Where the last step's layers left the experts they picked, [rows, experts_per_token], until the next
  // layer.
  const int32_t* expert_ids() const;
  // The rows whose products with the vocabulary the last step's logits are, [logit rows, hidden] bf16: those
  // of all ranks of a group alike.
  const void* logit_inputs() const;
  // [max_logits, logit_columns()]: the vocabulary on the first rank of a group, else this rank's part of it.
  const float* logits() const;
  int logit_columns() const;
  // Gives the ids that the group's first rank drew to the others, who find them in ids_of_first().
  void hand_out_ids(const int32_t* ids, int count, cudaStream_t stream);
  const int32_t* ids_of_first() const;
  size_t workspace_bytes() const;
  // Operations a microsecond that a large product reaches on this GPU; 0: no memory to try.
  double measure_product_rate(cudaStream_t stream);
  std::string describe() const;  // the attention kernels of the last step, in words

 private:
  struct State;
  explicit CudaTextModel(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sparrow
