// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/random/random_tensor.h"

#include <cmath>

namespace sparrow {
namespace {

uint64_t key_of(std::string_view name, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return mix_bits(hash ^ mix_bits(seed + 1));
}

UniformSpread with_std(double std) {
  return {0.0f, static_cast<float>(std * std::sqrt(3.0))};
}

// Chosen so that activations stay of order 1 and the logits spread by about 2.5.
UniformSpread spread_of(const TensorSpec& spec, const ModelConfig& config) {
  const auto has = [&](std::string_view part) { return spec.name.find(part) != std::string::npos; };
  if (has("e_score_correction_bias")) return {0.0f, 0.05f};
  if (has(".bias")) return {0.0f, 0.02f};
  if (has("layer_norm") || has("pre_layrnorm")) return {1.0f, 0.1f};
  // Sharper attention than at random: which keys a query sees has to matter to the output.
  if (has(".q_norm") || has(".k_norm")) return {0.5f, 0.2f};
  if (has("norm.weight")) return {0.0f, 0.1f};  // text norms scale by 1 + weight
  if (has("embed_tokens")) return with_std(0.5);
  int64_t inputs = 1;
  for (size_t d = 1; d < spec.shape.size(); ++d) inputs *= spec.shape[d];
  const double unit = 1.0 / std::sqrt(static_cast<double>(inputs));
  if (has("lm_head")) return with_std(2.5 * unit);
  // What is added to the residual stream, twice in each layer.
  if (has("o_proj") || has("down_proj") || has(".w2."))
    return with_std(unit / std::sqrt(2.0 * config.num_layers));
  return with_std(unit);
}

BFloat16 convert(float x, BFloat16) {
  return to_bf16(x);
}
float convert(float x, float) {
  return x;
}

// Elements [first, first + count) of a tensor; `first` is a multiple of kElementsPerDraw.
template <typename T>
void fill_floats(uint64_t key, const UniformSpread& of, int64_t first, int64_t count, T* out) {
  const float step = of.step();
  const auto value = [&](uint64_t bits) {
    return convert(of.mean + step * static_cast<float>(static_cast<int16_t>(bits)), T{});
  };
  int64_t i = 0;
  for (; i + kElementsPerDraw <= count; i += kElementsPerDraw) {
    const uint64_t bits = draw_bits(key, (first + i) / kElementsPerDraw);
    for (int64_t k = 0; k < kElementsPerDraw; ++k) out[i + k] = value(bits >> (16 * k));
  }
  if (i == count) return;
  const uint64_t bits = draw_bits(key, (first + i) / kElementsPerDraw);
  for (int64_t k = 0; i + k < count; ++k) out[i + k] = value(bits >> (16 * k));
}

constexpr float kE4M3Max = 448.0f;

// The power of two that brings the amplitude just below the largest e4m3 value.
int scale_exponent(const UniformSpread& of) {
  return static_cast<int>(std::ceil(std::log2(of.amplitude / kE4M3Max)));
}

// 256 codes of evenly spaced values: a random byte picks one.
std::array<uint8_t, 256> code_table(const UniformSpread& of) {
  const float top = of.amplitude / std::ldexp(1.0f, scale_exponent(of));
  std::array<uint8_t, 256> table{};
  for (size_t i = 0; i < table.size(); ++i) {
    const float wanted = top * (static_cast<float>(i) - 127.5f) / 128.0f;
    float best = INFINITY;
    for (int code = 0; code < 256; ++code) {
      const float distance = std::fabs(e4m3_to_float(static_cast<uint8_t>(code)) - wanted);
      if (!(distance < best)) continue;
      best = distance;
      table[i] = static_cast<uint8_t>(code);
    }
  }
  return table;
}

void fill_bytes(uint64_t key, int64_t first, int64_t count, const std::array<uint8_t, 256>& table,
                uint8_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = first + i;
    out[i] = table[(draw_bits(key, at / 8) >> (8 * (at % 8))) & 0xff];
  }
}

}  // namespace

RandomTensor::RandomTensor(const TensorSpec& spec, const ModelConfig& config, uint64_t seed)
    : dtype_(spec.dtype), key_(key_of(spec.name, seed)), spread_(spread_of(spec, config)) {
  if (dtype_ == DType::kF8E4M3) table_ = code_table(spread_);
  if (dtype_ != DType::kU8) return;
  // The weight's spread, not the scale's: same name up to the suffix, but 32 times the inputs.
  TensorSpec weight = spec;
  weight.shape[1] *= 32;
  const int biased = 127 + scale_exponent(spread_of(weight, config));
  // Two neighbouring exponents, so that a scale used for the wrong group shows.
  for (size_t i = 0; i < table_.size(); ++i)
    table_[i] = static_cast<uint8_t>(biased - static_cast<int>(i % 2));
}

void RandomTensor::fill(int64_t first, int64_t count, std::byte* out) const {
  if (dtype_ == DType::kF32) return fill_floats(key_, spread_, first, count, reinterpret_cast<float*>(out));
  if (dtype_ == DType::kBF16)
    return fill_floats(key_, spread_, first, count, reinterpret_cast<BFloat16*>(out));
  fill_bytes(key_, first, count, table_, reinterpret_cast<uint8_t*>(out));
}

}  // namespace sparrow
