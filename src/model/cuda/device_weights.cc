// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/device_weights.h"

#include <utility>

#include "checkpoint/random/random_tensor.h"
#include "device/cuda/check.h"
#include "device/cuda/stream.h"
#include "model/cuda/device_weights_load.h"
#include "model/device_layout.h"

namespace sparrow {
namespace {

double gib(size_t bytes) {
  return static_cast<double>(bytes) / (1024.0 * 1024 * 1024);
}

// The layout's offsets as pointers into fresh memory, all zero.
Result<DeviceWeights> allocate(const DeviceLayout& layout) {
  size_t free = 0, total = 0;
  SPARROW_CUDA(cudaMemGetInfo(&free, &total));
  if (layout.bytes > free)
    return Error{
        Errc::kUnsupported,
        strf(
            "the weights need {:.2f} GiB of GPU memory and {:.2f} of its {:.2f} GiB are free: {:.2f} GiB are "
            "missing; split the model over more GPUs (ranks) or use a smaller type of weights",
            gib(layout.bytes), gib(free), gib(total), gib(layout.bytes - free))};
  DeviceWeights weights;
  weights.memory = SPARROW_TRY(DeviceBuffer::allocate(layout.bytes));
  std::byte* const memory = weights.memory.data();
  SPARROW_CUDA(cudaMemset(memory, 0, layout.bytes));
  SPARROW_CUDA(cudaDeviceSynchronize());  // other streams do not wait for this one

  const auto at = [&]<typename T>(size_t offset, const T*& pointer) {
    pointer = offset == DeviceLayerLayout::kAbsent ? nullptr : reinterpret_cast<const T*>(memory + offset);
  };
  at(layout.embed, weights.embed);
  at(layout.final_norm, weights.final_norm);
  at(layout.lm_head, weights.lm_head);
  weights.first_vocab_row = layout.first_vocab_row;
  weights.vocab_rows = layout.vocab_rows;
  weights.query_heads = layout.query_heads;
  weights.kv_heads = layout.kv_heads;
  for (const DeviceLayerLayout& from : layout.layers) {
    DeviceLayer layer = {.qkv_rows = from.qkv_rows, .num_experts = from.num_experts, .inter = from.inter};
    at(from.input_norm, layer.input_norm);
    at(from.post_attention_norm, layer.post_attention_norm);
    at(from.q_norm, layer.q_norm);
    at(from.k_norm, layer.k_norm);
    at(from.index_q_norm, layer.index_q_norm);
    at(from.index_k_norm, layer.index_k_norm);
    at(from.qkv, layer.qkv);
    at(from.o, layer.o);
    at(from.router, layer.router);
    at(from.router_bias, layer.router_bias);
    at(from.gate_up, layer.gate_up);
    at(from.down, layer.down);
    weights.layers.push_back(layer);
  }
  return weights;
}

}  // namespace

Result<DeviceWeights> load_device_weights(const ModelConfig& config, const ParallelConfig& parallel,
                                          const Weights& mapped, const ProgressFn& progress,
                                          const DeviceLoadOptions& options) {
  const DeviceLayout layout = SPARROW_TRY(make_device_layout(config, parallel));
  DeviceWeights weights = SPARROW_TRY(allocate(layout));
  SPARROW_TRY(
      copy_parts(device_parts(config, parallel, layout), mapped, weights.memory.data(), progress, options));
  return weights;
}

Result<DeviceWeights> dummy_device_weights(const ModelConfig& config, const ParallelConfig& parallel,
                                           uint64_t seed) {
  const DeviceLayout layout = SPARROW_TRY(make_device_layout(config, parallel));
  DeviceWeights weights = SPARROW_TRY(allocate(layout));
  const Stream stream;
  for (const DevicePart& part : device_parts(config, parallel, layout)) {
    // Only the number of inputs matters; vectors have none.
    const TensorSpec spec = {part.name, part.dtype, {part.whole_rows, part.whole_cols}};
    const RandomTensor tensor(spec, config, seed);
    const RandomSource source = {.key = tensor.key(),
                                 .spread = tensor.spread(),
                                 .first_row = part.first_row,
                                 .first_col = part.first_col,
                                 .whole_cols = part.whole_cols};
    SPARROW_CUDA(
        launch_fill_random(pack_target(part, weights.memory.data(), 0, part.num_rows), source, stream.get()));
  }
  stream.synchronize();
  return weights;
}

}  // namespace sparrow
