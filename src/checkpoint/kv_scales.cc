// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/kv_scales.h"

#include <algorithm>
#include <cmath>

namespace sparrow {
namespace {

Result<std::optional<float>> find_scale(const std::vector<std::string>& names, const ScalarTensors& scalars) {
  for (const std::string& name : names) {
    const std::optional<float> scale = scalars(name);
    if (!scale) continue;
    if (!std::isfinite(*scale) || *scale <= 0)
      return Error{Errc::kCorrupt,
                   strf("tensor {} is {}; the scale of a cache is a positive number", name, *scale)};
    return scale;
  }
  return std::optional<float>();
}

}  // namespace

Result<std::optional<KvScales>> find_kv_scales(int layer, const NameScheme& names,
                                               const ScalarTensors& scalars) {
  const auto find = [&](TensorRole role) { return find_scale(kv_scale_names(role, layer, names), scalars); };
  const std::optional<float> k = SPARROW_TRY(find(TensorRole::kK));
  const std::optional<float> v = SPARROW_TRY(find(TensorRole::kV));
  if (!k && !v) return std::optional<KvScales>();
  return std::optional(KvScales{k.value_or(v.value_or(1)), v.value_or(k.value_or(1))});
}

std::vector<float> kv_scale_table(std::span<const LayerWeights> layers, int kv_heads) {
  if (std::none_of(layers.begin(), layers.end(),
                   [](const LayerWeights& layer) { return layer.kv_scales.has_value(); }))
    return {};
  std::vector<float> table;
  for (const LayerWeights& layer : layers) {
    const KvScales scales = layer.kv_scales.value_or(KvScales{});
    for (int head = 0; head < kv_heads; ++head) table.insert(table.end(), {scales.k, scales.v});
  }
  return table;
}

}  // namespace sparrow
