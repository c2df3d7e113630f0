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

// Of the matrix that a tensor belongs to.
int64_t num_inputs(const TensorRow& row) {
  int64_t inputs = row.piece == TensorPiece::kScales ? kScaleGroup : 1;
  for (size_t d = 1; d < row.spec.shape.size(); ++d) inputs *= row.spec.shape[d];
  return inputs;
}

// Chosen so that activations stay of order 1 and the logits spread by about 2.5.
UniformSpread spread_of(const TensorRow& row, const ModelConfig& config) {
  const double unit = 1.0 / std::sqrt(static_cast<double>(num_inputs(row)));
  switch (row.spread) {
    case RandomSpread::kUnit:
      return with_std(unit);
    case RandomSpread::kResidual:
      return with_std(unit / std::sqrt(2.0 * config.num_layers));
    case RandomSpread::kEmbedding:
      return with_std(0.5);
    case RandomSpread::kHead:
      return with_std(2.5 * unit);
    case RandomSpread::kNorm:
      return {0.0f, 0.1f};
    case RandomSpread::kHeadNorm:
      // Sharper attention than at random: which keys a query sees has to matter to the output.
      return {0.5f, 0.2f};
    case RandomSpread::kVisionNorm:
      return {1.0f, 0.1f};
    case RandomSpread::kBias:
      return {0.0f, 0.02f};
    case RandomSpread::kRouterBias:
      return {0.0f, 0.05f};
  }
  return {};
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

RandomNumbers random_numbers(const TensorRow& row, const ModelConfig& config, uint64_t seed) {
  return {key_of(row.spec.name, seed), spread_of(row, config)};
}

RandomTensor::RandomTensor(const TensorRow& row, const ModelConfig& config, uint64_t seed)
    : dtype_(row.spec.dtype), numbers_(random_numbers(row, config, seed)) {
  if (dtype_ == DType::kF8E4M3) table_ = code_table(numbers_.spread);
  if (row.piece != TensorPiece::kScales) return;
  const int biased = 127 + scale_exponent(numbers_.spread);
  // Two neighbouring exponents, so that a scale used for the wrong group shows.
  for (size_t i = 0; i < table_.size(); ++i)
    table_[i] = static_cast<uint8_t>(biased - static_cast<int>(i % 2));
}

void RandomTensor::fill(int64_t first, int64_t count, std::byte* out) const {
  const auto& [key, spread] = numbers_;
  if (dtype_ == DType::kF32) return fill_floats(key, spread, first, count, reinterpret_cast<float*>(out));
  if (dtype_ == DType::kBF16) return fill_floats(key, spread, first, count, reinterpret_cast<BFloat16*>(out));
  fill_bytes(key, first, count, table_, reinterpret_cast<uint8_t*>(out));
}

}  // namespace sparrow
