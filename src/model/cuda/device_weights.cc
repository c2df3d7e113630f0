// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/device_weights.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "checkpoint/random/random_tensor.h"
#include "checkpoint/tensor_table.h"
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

  using enum DeviceTensor;
  const auto at = [&]<typename T>(const DeviceTensorLayout& tensor, const T*& pointer) {
    const bool is_there = tensor.offset != DeviceTensorLayout::kAbsent;
    pointer = is_there ? reinterpret_cast<const T*>(memory + tensor.offset) : nullptr;
  };
  const auto matrix = [&](const DeviceTensorLayout& tensor) {
    return ops::cuda::DeviceMatrix{.format = tensor.format,
                                   .values = memory + tensor.offset,
                                   .rows = static_cast<int>(tensor.rows),
                                   .cols = static_cast<int>(tensor.cols)};
  };
  at(layout.model[kEmbed], weights.embed);
  at(layout.model[kFinalNorm], weights.final_norm);
  weights.head = matrix(layout.model[kHead]);
  weights.first_vocab_row = layout.first_vocab_row;
  weights.vocab_rows = layout.vocab_rows;
  weights.query_heads = layout.query_heads;
  weights.kv_heads = layout.kv_heads;
  weights.experts = layout.experts;
  for (const DeviceLayerLayout& from : layout.layers) {
    const DeviceTensors& tensors = from.tensors;
    DeviceLayer layer = {.qkv_rows = from.qkv_rows,
                         .other_index_rows = from.other_index_rows,
                         .num_experts = from.num_experts,
                         .inter = from.inter,
                         .expanded_numbers = from.expanded_numbers,
                         .shared_inter = from.shared_inter};
    at(tensors[kInputNorm], layer.input_norm);
    at(tensors[kPostAttentionNorm], layer.post_attention_norm);
    at(tensors[kQNorm], layer.q_norm);
    at(tensors[kKNorm], layer.k_norm);
    at(tensors[kIndexQNorm], layer.index_q_norm);
    at(tensors[kIndexKNorm], layer.index_k_norm);
    layer.qkv = layer.all_qkv = matrix(tensors[kQkv]);
    layer.qkv.rows = from.qkv_rows;
    layer.o = matrix(tensors[kO]);
    at(tensors[kRouter], layer.router);
    at(tensors[kRouterBias], layer.router_bias);
    layer.gate_up = matrix(tensors[kGateUp]);
    layer.down = matrix(tensors[kDown]);
    if (layer.shared_inter > 0) {
      layer.shared_gate_up = matrix(tensors[kSharedGateUp]);
      layer.shared_down = matrix(tensors[kSharedDown]);
    }
    weights.layers.push_back(layer);
  }
  return weights;
}

}  // namespace

Result<DeviceWeights> load_device_weights(const ModelConfig& config, const Grid& grid, const Weights& mapped,
                                          const ProgressFn& progress, const DeviceLoadOptions& options) {
  const DeviceLayout layout = SPARROW_TRY(make_device_layout(config, grid));
  DeviceWeights weights = SPARROW_TRY(allocate(layout));
  weights.folded = SPARROW_TRY(copy_parts(layout.parts, mapped, weights.memory.data(), progress, options));
  return weights;
}

Result<DeviceWeights> dummy_device_weights(const ModelConfig& config, const Grid& grid, uint64_t seed,
                                           bool fold_rows) {
  const std::vector<TensorRow> rows = tensor_table(config);
  const DeviceLayout layout = SPARROW_TRY(make_device_layout(config, grid, rows));
  DeviceWeights weights = SPARROW_TRY(allocate(layout));
  const auto key = [](const TensorRow& row) { return std::tuple(row.layer, row.expert, row.role); };
  std::map<decltype(key(rows[0])), RandomTensor> scales;
  for (const TensorRow& row : rows)
    if (row.piece == TensorPiece::kScales) scales.emplace(key(row), RandomTensor(row, config, seed));
  const Stream stream;
  for (const DevicePart& part : layout.parts) {
    const PackTarget target = pack_target(part, weights.memory.data(), 0, part.num_rows);
    if (is_mx(target.format)) {
      RandomCells source = {.codes = RandomTensor(part.tensor, config, seed).bytes(),
                            .scales = scales.at(key(part.tensor)).bytes(),
                            .first_row = part.first_row,
                            .first_col = part.first_col,
                            .whole_cols = part.whole_cols};
      if (fold_rows && is_folded(part)) {  // one scale for all
        std::ranges::fill(source.scales.table, source.scales.table[0]);
        weights.folded.codes += part.num_rows * part.num_cols;
      }
      SPARROW_CUDA(launch_fill_random_cells(target, source, stream.get()));
      continue;
    }
    const RandomNumbers numbers = random_numbers(part.tensor, config, seed);
    const RandomSource source = {.key = numbers.key,
                                 .spread = numbers.spread,
                                 .first_row = part.first_row,
                                 .first_col = part.first_col,
                                 .whole_cols = part.whole_cols};
    SPARROW_CUDA(launch_fill_random(target, source, stream.get()));
  }
  stream.synchronize();
  return weights;
}

}  // namespace sparrow
