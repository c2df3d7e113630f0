// SPDX-License-Identifier: Apache-2.0
// Where roles and members meet.
#include "checkpoint/weights.h"

namespace sparrow {
namespace {

// A matrix, or a vector, which has no scales; some have a bias. T is Tensor or const Tensor.
template <typename T>
struct Slot {
  T* values = nullptr;
  T* scales = nullptr;
  T* bias = nullptr;

  Slot() = default;
  Slot(T& vector) : values(&vector) {}
  Slot(auto& matrix) requires requires { matrix.values; } : values(&matrix.values), scales(&matrix.scales) {
  }
  Slot(auto& biased) requires requires {
    biased.matrix;
  } : values(&biased.matrix.values), bias(&biased.bias) {
  }
  Slot(auto& norm) requires requires { norm.weight; } : values(&norm.weight), bias(&norm.bias) {
  }
};

template <typename T>
Slot<T> find_in_layer(auto& layer, TensorRole role, int expert) {
  auto& mlp = expert < 0 ? layer.mlp : layer.experts[static_cast<size_t>(expert)];
  switch (role) {
    case TensorRole::kInputNorm:
      return layer.input_norm;
    case TensorRole::kPostAttentionNorm:
      return layer.post_attention_norm;
    case TensorRole::kQ:
      return layer.q;
    case TensorRole::kK:
      return layer.k;
    case TensorRole::kV:
      return layer.v;
    case TensorRole::kO:
      return layer.o;
    case TensorRole::kQNorm:
      return layer.q_norm;
    case TensorRole::kKNorm:
      return layer.k_norm;
    case TensorRole::kIndexQ:
      return layer.index_q;
    case TensorRole::kIndexK:
      return layer.index_k;
    case TensorRole::kIndexQNorm:
      return layer.index_q_norm;
    case TensorRole::kIndexKNorm:
      return layer.index_k_norm;
    case TensorRole::kRouter:
      return layer.router;
    case TensorRole::kRouterBias:
      return layer.router_bias;
    case TensorRole::kGate:
      return mlp.gate;
    case TensorRole::kUp:
      return mlp.up;
    case TensorRole::kDown:
      return mlp.down;
    default:
      return {};
  }
}

template <typename T>
Slot<T> find_in_vision_layer(auto& layer, TensorRole role) {
  switch (role) {
    case TensorRole::kVisionNorm1:
      return layer.norm1;
    case TensorRole::kVisionQ:
      return layer.q;
    case TensorRole::kVisionK:
      return layer.k;
    case TensorRole::kVisionV:
      return layer.v;
    case TensorRole::kVisionO:
      return layer.o;
    case TensorRole::kVisionNorm2:
      return layer.norm2;
    case TensorRole::kVisionUp:
      return layer.up;
    case TensorRole::kVisionDown:
      return layer.down;
    default:
      return {};
  }
}

template <typename T>
Slot<T> find_in_vision(auto& vision, TensorRole role, int layer) {
  switch (role) {
    case TensorRole::kVisionPatch:
      return vision.patch;
    case TensorRole::kVisionPreNorm:
      return vision.pre_norm;
    case TensorRole::kProjectorUp:
      return vision.projector_up;
    case TensorRole::kProjectorDown:
      return vision.projector_down;
    case TensorRole::kMergerUp:
      return vision.merger_up;
    case TensorRole::kMergerDown:
      return vision.merger_down;
    default:
      return find_in_vision_layer<T>(vision.layers[static_cast<size_t>(layer)], role);
  }
}

template <typename T>
Slot<T> find_slot(auto& weights, TensorRole role, int layer, int expert) {
  if (role >= TensorRole::kVisionPatch)
    return weights.vision ? find_in_vision<T>(*weights.vision, role, layer) : Slot<T>();
  switch (role) {
    case TensorRole::kEmbed:
      return weights.embed;
    case TensorRole::kFinalNorm:
      return weights.final_norm;
    case TensorRole::kHead:
      return weights.head;
    default:
      if (layer < 0 || static_cast<size_t>(layer) >= weights.layers.size()) return {};
      return find_in_layer<T>(weights.layers[static_cast<size_t>(layer)], role, expert);
  }
}

}  // namespace

Tensor* find_tensor(Weights& weights, TensorRole role, TensorPiece piece, int layer, int expert) {
  const auto slot = find_slot<Tensor>(weights, role, layer, expert);
  switch (piece) {
    case TensorPiece::kValues:
      return slot.values;
    case TensorPiece::kScales:
      return slot.scales;
    case TensorPiece::kBias:
      return slot.bias;
  }
  return nullptr;
}

ops::Weight find_weight(const Weights& weights, TensorRole role, int layer, int expert) {
  const auto slot = find_slot<const Tensor>(weights, role, layer, expert);
  SPARROW_CHECK(slot.values != nullptr);
  return {*slot.values, slot.scales ? *slot.scales : Tensor()};
}

}  // namespace sparrow
