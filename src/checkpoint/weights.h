// SPDX-License-Identifier: Apache-2.0
// Weights: views of the text model's tensors, as stored. Whoever opened the checkpoint keeps the memory
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

struct Weights {
  Tensor embed;  // [vocab_size, hidden_size]
  Tensor final_norm;
  ops::Weight head;  // [vocab_size, hidden_size]
  std::vector<LayerWeights> layers;
};

// The view of a role's values, scales or bias; layer and expert are -1 where the role has none. nullptr: the
// text model has no such tensor.
Tensor* find_tensor(Weights& weights, TensorRole role, TensorPiece piece, int layer, int expert);

// Both views of a matrix, or a vector's one.
ops::Weight find_weight(const Weights& weights, TensorRole role, int layer, int expert);

}  // namespace sparrow
