// SPDX-License-Identifier: Apache-2.0
// Element types of checkpoints and caches, with exact scalar conversions.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sparrow {

enum class DType : uint8_t { kF32, kBF16, kF8E4M3, kU8, kI32 };

constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
      return 2;
    case DType::kF8E4M3:
    case DType::kU8:
      return 1;
  }
  return 0;
}

// The name safetensors gives the type.
constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kU8:
      return "U8";
    case DType::kI32:
      return "I32";
  }
  return "?";
}

// The name that users are told, of a type that caches and models have.
constexpr std::string_view short_name_of(DType dtype) {
  return dtype == DType::kF32 ? "f32" : dtype == DType::kBF16 ? "bf16" : "fp8";
}

// Storage only: arithmetic happens in float.
struct BFloat16 {
  uint16_t bits;
};

constexpr float to_float(BFloat16 x) {
  return std::bit_cast<float>(uint32_t{x.bits} << 16);
}
constexpr float to_float(float x) {
  return x;
}

// Round to nearest, ties to even. NaN stays NaN (made quiet), so that rounding up cannot turn it into
// infinity.
constexpr BFloat16 to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

// e4m3fn: bias 7, no infinities, 0x7f and 0xff are NaN.
constexpr float e4m3_to_float(uint8_t x) {
  const uint32_t sign = uint32_t{x} >> 7 << 31;
  const uint32_t magnitude = x & 0x7fu;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  // Exponent and mantissa moved into a float's fields read 2^120 too small, subnormals included.
  const float value = std::bit_cast<float>(magnitude << 20) * 0x1p120f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

// e2m1, in the low four bits: sign, two bits of exponent with bias 1, one of mantissa. All are numbers.
constexpr float e2m1_to_float(uint8_t x) {
  constexpr float kMagnitudes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  return (x & 8u) != 0 ? -kMagnitudes[x & 7u] : kMagnitudes[x & 7u];
}

// e8m0: a power of two with bias 127; 255 is NaN.
inline constexpr uint8_t kE8M0NaN = 255;
inline float e8m0_to_float(uint8_t x) {
  return x == kE8M0NaN ? NAN : std::ldexp(1.0f, int{x} - 127);
}

}  // namespace sparrow
