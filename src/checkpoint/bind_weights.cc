// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/bind_weights.h"

#include <algorithm>
#include <array>

namespace sparrow {
namespace {

std::byte* new_copy(size_t bytes, TensorCopies& copies) {
  copies.push_back(std::make_unique<std::byte[]>(bytes));
  return copies.back().get();
}

Tensor view_of(const StoredTensor& stored, TensorCopies& copies) {
  const std::byte* data = stored.bytes.data();
  if (reinterpret_cast<uintptr_t>(data) % size_of(stored.dtype) != 0) {
    std::byte* const copy = new_copy(stored.bytes.size(), copies);
    std::copy(stored.bytes.begin(), stored.bytes.end(), copy);
    data = copy;
  }
  // A patch's own extents are one: its numbers are a row of the matrix.
  if (stored.shape.size() > Tensor::kMaxRank) {
    int64_t columns = 1;
    for (const int64_t extent : stored.shape.subspan(1)) columns *= extent;
    return make_view(data, stored.dtype, std::array{stored.shape[0], columns});
  }
  return make_view(data, stored.dtype, stored.shape);
}

Tensor as_f32(const Tensor& stored, TensorCopies& copies) {
  if (stored.dtype == DType::kF32) return stored;
  Tensor widened(new_copy(static_cast<size_t>(stored.numel()) * sizeof(float), copies), DType::kF32,
                 {stored.numel()});
  for (int64_t i = 0; i < stored.numel(); ++i) widened.as<float>()[i] = to_float(stored.as<BFloat16>()[i]);
  return widened;
}

}  // namespace

Weights bind_weights(const ModelConfig& config, std::span<const TensorRow> rows, const StoredTensors& stored,
                     TensorCopies& copies, bool vision) {
  Weights weights;
  if (vision && config.vision) {
    weights.vision.emplace();
    weights.vision->layers.resize(static_cast<size_t>(config.vision->num_layers));
  }
  weights.layers.resize(static_cast<size_t>(config.num_layers));
  for (size_t i = 0; i < weights.layers.size(); ++i)
    if (config.layer_is_moe[i]) weights.layers[i].experts.resize(static_cast<size_t>(config.num_experts));
  for (size_t i = 0; i < rows.size(); ++i) {
    const TensorRow& row = rows[i];
    Tensor* const view = find_tensor(weights, row.role, row.piece, row.layer, row.expert);
    if (view == nullptr) continue;
    *view = view_of(stored(i), copies);
    if (row.role == TensorRole::kRouterBias || row.piece == TensorPiece::kBias) *view = as_f32(*view, copies);
  }
  return weights;
}

}  // namespace sparrow
