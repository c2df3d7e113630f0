// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/kv_scales.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace sparrow {
namespace {

// Behind "self_attn."; the first that is there counts.
constexpr std::array<std::string_view, 5> kKNames = {"attn.k_scale", "k_proj.k_scale", "qkv_proj.k_scale",
                                                     "k_scale", "kv_scale"};
constexpr std::array<std::string_view, 5> kVNames = {"attn.v_scale", "v_proj.v_scale", "qkv_proj.v_scale",
                                                     "v_scale", "kv_scale"};
constexpr std::array<std::string_view, 4> kQNames = {"attn.q_scale", "q_proj.q_scale", "qkv_proj.q_scale",
                                                     "q_scale"};
constexpr std::string_view kAttention = "self_attn.";

Result<std::optional<float>> find_scale(const std::string& prefix, std::span<const std::string_view> names,
                                        const ScalarTensors& scalars) {
  for (const std::string_view name : names) {
    const std::string whole = strf("{}{}", prefix, name);
    const std::optional<float> scale = scalars(whole);
    if (!scale) continue;
    if (!std::isfinite(*scale) || *scale <= 0)
      return Error{Errc::kCorrupt,
                   strf("tensor {} is {}; the scale of a cache is a positive number", whole, *scale)};
    return scale;
  }
  return std::optional<float>();
}

}  // namespace

bool is_attention_scale(std::string_view tensor_name) {
  const size_t at = tensor_name.find(kAttention);
  if (at == std::string_view::npos) return false;
  const std::string_view rest = tensor_name.substr(at + kAttention.size());
  const auto is_among = [&](const auto& names) {
    return std::find(names.begin(), names.end(), rest) != names.end();
  };
  return is_among(kKNames) || is_among(kVNames) || is_among(kQNames);
}

Result<std::optional<KvScales>> find_kv_scales(const std::string& layer_prefix,
                                               const ScalarTensors& scalars) {
  const std::string prefix = strf("{}{}", layer_prefix, kAttention);
  const std::optional<float> k = SPARROW_TRY(find_scale(prefix, kKNames, scalars));
  const std::optional<float> v = SPARROW_TRY(find_scale(prefix, kVNames, scalars));
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
