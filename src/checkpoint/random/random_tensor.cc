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
  int64_t inputs = row.piece == TensorPiece::kScales ? kScaleGroup : values_per_element(row.format);
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

float code_value(MatrixFormat format, int code) {
  if (format == MatrixFormat::kMxfp8) return e4m3_to_float(static_cast<uint8_t>(code));
  constexpr float kE2M1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return code < 8 ? kE2M1[code] : -kE2M1[code - 8];
}

// The power of two that brings the amplitude just below the largest value of a code.
int scale_exponent(MatrixFormat format, const UniformSpread& of) {
  const float largest = format == MatrixFormat::kMxfp8 ? 448.0f : 6.0f;
  return static_cast<int>(std::ceil(std::log2(of.amplitude / largest)));
}

// The code nearest to the i-th of `count` evenly spaced values.
int spaced_code(MatrixFormat format, const UniformSpread& of, int i, int count) {
  const float top = of.amplitude / std::ldexp(1.0f, scale_exponent(format, of));
  const float wanted = top * (static_cast<float>(i) - 0.5f * static_cast<float>(count - 1)) /
                       (0.5f * static_cast<float>(count));
  int nearest = 0;
  float best = INFINITY;
  for (int code = 0; code < count; ++code) {
    const float distance = std::fabs(code_value(format, code) - wanted);
    if (!(distance < best)) continue;
    best = distance;
    nearest = code;
  }
  return nearest;
}

// A random byte picks a code of MXFP8, or two of MXFP4.
void fill_code_table(MatrixFormat format, const UniformSpread& of, uint8_t (&table)[256]) {
  for (int i = 0; i < 256; ++i)
    table[i] =
        static_cast<uint8_t>(format == MatrixFormat::kMxfp8 ? spaced_code(format, of, i, 256)
                                                            : spaced_code(format, of, i % 16, 16) |
                                                                  spaced_code(format, of, i / 16, 16) << 4);
}

// Two neighbouring exponents, so that a scale used for the wrong group shows.
void fill_scale_table(MatrixFormat format, const UniformSpread& of, uint8_t (&table)[256]) {
  const int biased = 127 + scale_exponent(format, of);
  for (int i = 0; i < 256; ++i) table[i] = static_cast<uint8_t>(biased - i % 2);
}

}  // namespace

RandomNumbers random_numbers(const TensorRow& row, const ModelConfig& config, uint64_t seed) {
  return {key_of(row.spec.name, seed), spread_of(row, config)};
}

RandomTensor::RandomTensor(const TensorRow& row, const ModelConfig& config, uint64_t seed)
    : dtype_(row.spec.dtype), numbers_(random_numbers(row, config, seed)), bytes_{numbers_.key, {}} {
  if (!is_mx(row.format)) return;
  const auto fill = row.piece == TensorPiece::kScales ? fill_scale_table : fill_code_table;
  fill(row.format, numbers_.spread, bytes_.table);
}

void RandomTensor::fill(int64_t first, int64_t count, std::byte* out) const {
  const auto& [key, spread] = numbers_;
  if (dtype_ == DType::kF32) return fill_floats(key, spread, first, count, reinterpret_cast<float*>(out));
  if (dtype_ == DType::kBF16) return fill_floats(key, spread, first, count, reinterpret_cast<BFloat16*>(out));
  for (int64_t i = 0; i < count; ++i) out[i] = std::byte{bytes_.at(first + i)};
}

}  // namespace sparrow
