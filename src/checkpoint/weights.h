// SPDX-License-Identifier: Apache-2.0
// Weights: views of the model's tensors, as stored. Whoever opened the checkpoint keeps the memory
// alive.
#pragma once

#include <optional>
#include <vector>

#include "base/tensor.h"
#include "checkpoint/tensor_row.h"
#include "ops/ops.h"

namespace sparrow {

// An fp8 cache holds x / scale.
struct KvScales {
  float k = 1, v = 1;
};

struct LayerWeights {
  Tensor input_norm, post_attention_norm;
  ops::Weight q, k, v, o;
  Tensor q_norm, k_norm;
  // Sparse layers only.
  ops::Weight index_q, index_k;
  Tensor index_q_norm, index_k_norm;
  std::optional<KvScales> kv_scales;  // where the checkpoint has them

  ops::MlpWeights mlp;  // the dense MLP, or the shared expert of a MoE layer
  // MoE layers only.
  ops::Weight router;
  Tensor router_bias;  // always F32
  std::vector<ops::MlpWeights> experts;
};

// Biases are always F32.
struct BiasedWeight {
  ops::Weight matrix;
  Tensor bias;
};

struct NormWeights {
  Tensor weight, bias;
};

struct VisionLayerWeights {
  NormWeights norm1, norm2;
  BiasedWeight q, k, v, o;
  BiasedWeight up, down;
};

struct VisionWeights {
  ops::Weight patch;  // [tower's hidden size, numbers of a patch]
  NormWeights pre_norm;
  std::vector<VisionLayerWeights> layers;
  BiasedWeight projector_up, projector_down, merger_up, merger_down;
};

struct Weights {
  Tensor embed;  // [vocab_size, hidden_size]
  Tensor final_norm;
  ops::Weight head;  // [vocab_size, hidden_size]
  std::vector<LayerWeights> layers;
  // Nothing where the model has no vision, or it was left out.
  std::optional<VisionWeights> vision;
};

// The view of a role's values, scales or bias; layer and expert are -1 where the role has none. nullptr:
// there is no place for such a tensor.
Tensor* find_tensor(Weights& weights, TensorRole role, TensorPiece piece, int layer, int expert);

// Both views of a matrix, or a vector's one.
ops::Weight find_weight(const Weights& weights, TensorRole role, int layer, int expert);

}  // namespace sparrow
