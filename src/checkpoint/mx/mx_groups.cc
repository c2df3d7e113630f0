// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/mx/mx_groups.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "ops/cuda/mx/cell.h"

namespace sparrow {
namespace {

constexpr int kGroup = static_cast<int>(kScaleGroup);
constexpr int kFloatMantissa = 23, kFloatBias = 127;
constexpr int32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;

struct E4M3 {
  static constexpr MatrixFormat kFormat = MatrixFormat::kMxfp8;
  static constexpr int kBits = 8, kMantissa = 3, kBias = 7;
  static constexpr int32_t kLargest = 0x7e, kNaN = 0x7f;  // 448
  // The scale's exponent is that of the largest number, rounded up where it is above 1.75 x 2^n (as 448 is),
  // less 8.
  static constexpr uint32_t kRoundUp = 0x1fffff;
  static constexpr int kBelow = 8, kZeroScale = 0;
};

struct E2M1 {
  static constexpr MatrixFormat kFormat = MatrixFormat::kMxfp4;
  static constexpr int kBits = 4, kMantissa = 1, kBias = 1;
  static constexpr int32_t kLargest = 7, kNaN = -1;  // 6; it has no NaN
  // Quark's: rounded up from 1.75 x 2^n on, less 2.
  static constexpr uint32_t kRoundUp = 0x200000;
  static constexpr int kBelow = 2, kZeroScale = 1;
};

// Four numbers at a time, whatever the machine: compilers that are left to make vectors of such loops do not.
constexpr int kLanes = 4;
using Floats = float __attribute__((vector_size(16)));
using Ints = int32_t __attribute__((vector_size(16)));

Ints bits_of(Floats x) {
  return std::bit_cast<Ints>(x);
}
Floats floats_of(Ints bits) {
  return std::bit_cast<Floats>(bits);
}
Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

// Both ways for codes without their signs. Below 2^(1 - bias) codes are evenly spaced.
template <typename Code>
struct Magnitude {
  static constexpr int kShift = kFloatMantissa - Code::kMantissa;
  static constexpr int32_t kRebias = (kFloatBias - Code::kBias) << Code::kMantissa;
  static constexpr float kNormal = std::bit_cast<float>((kFloatBias + 1 - Code::kBias) << kFloatMantissa);
  static constexpr float kStep =
      std::bit_cast<float>((kFloatBias + 1 - Code::kBias - Code::kMantissa) << kFloatMantissa);
  // Adding it rounds to whole steps.
  static constexpr float kRounder = kStep * (1 << kFloatMantissa);

  static Ints round(Floats x) {
    const Ints bits = bits_of(x);
    const Ints normal = ((bits + ((1 << (kShift - 1)) - 1) + (bits >> kShift & 1)) >> kShift) - kRebias;
    const Ints even = bits_of(x + kRounder) - std::bit_cast<int32_t>(kRounder);
    const Ints code = x < kNormal ? even : normal;
    return code < Code::kLargest ? code : Ints{} + Code::kLargest;
  }

  static Floats expand(Ints code) {
    const Floats even = __builtin_convertvector(code, Floats) * kStep;
    const Floats normal = floats_of((code + kRebias) << kShift);
    const Floats number = code < 1 << Code::kMantissa ? even : normal;
    return code == Code::kNaN ? Floats{} + NAN : number;
  }
};

// From -127 on; what is above 127 is infinite.
float power_of_two(int exponent) {
  return exponent == -kFloatBias ? 0x1p-127f
                                 : std::bit_cast<float>((exponent + kFloatBias) << kFloatMantissa);
}

template <typename Code>
int scale_of(uint32_t largest_bits) {
  if (largest_bits == 0) return Code::kZeroScale;
  return std::max(static_cast<int>((largest_bits + Code::kRoundUp) >> kFloatMantissa) - Code::kBelow, 0);
}

template <typename Code>
void store(const int32_t* codes, uint8_t* out) {
  if constexpr (Code::kBits == 8)
    for (int i = 0; i < kGroup; ++i) out[i] = static_cast<uint8_t>(codes[i]);
  else
    for (int i = 0; i < kGroup / 2; ++i) out[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
}

uint32_t largest_bits(const float* values) {
  Ints largest{};
  for (int i = 0; i < kGroup; i += kLanes) {
    const Ints bits = bits_of(load(values + i)) & kMagnitude;
    largest = bits > largest ? bits : largest;
  }
  return static_cast<uint32_t>(std::max(std::max(largest[0], largest[1]), std::max(largest[2], largest[3])));
}

template <typename Code>
RoundingError round_group(const float* values, int scale, uint8_t* out) {
  const float inverse = power_of_two(kFloatBias - scale);
  alignas(16) int32_t codes[kGroup];
  Floats squares{}, error_squares{}, largest{};
  for (int i = 0; i < kGroup; i += kLanes) {
    const Floats x = load(values + i) * inverse;
    const Floats magnitude = floats_of(bits_of(x) & kMagnitude);
    const Ints code = Magnitude<Code>::round(magnitude);
    const Ints sign = (x < 0.0f) & (code != 0) & (1 << (Code::kBits - 1));
    const Ints signed_code = code | sign;
    std::memcpy(codes + i, &signed_code, sizeof signed_code);
    const Floats error = Magnitude<Code>::expand(code) - magnitude;
    const Floats distance = floats_of(bits_of(error) & kMagnitude);
    squares += x * x;
    error_squares += error * error;
    largest = distance > largest ? distance : largest;
  }
  store<Code>(codes, out);
  RoundingError sum;
  for (int lane = 0; lane < kLanes; ++lane)
    sum.add({.squares = squares[lane], .error_squares = error_squares[lane], .largest = largest[lane]});
  const double unit = power_of_two(scale - kFloatBias);
  return {sum.squares * unit * unit, sum.error_squares * unit * unit, sum.largest * unit};
}

template <typename Code>
RoundedGroups round_all(std::span<const float> values, uint8_t* codes, uint8_t* scales) {
  constexpr size_t kCodeBytes = kGroup * Code::kBits / 8;
  RoundedGroups rounded;
  const size_t groups = values.size() / kGroup;
  for (size_t g = 0; g < groups; ++g) {
    const float* const group = values.data() + g * kGroup;
    const uint32_t largest = largest_bits(group);
    const int scale = scale_of<Code>(largest);
    if (largest >= uint32_t{kInfinity} || scale > ops::cuda::max_cell_scale(Code::kFormat)) {
      rounded.refused = static_cast<int64_t>(g);
      return rounded;
    }
    scales[g] = static_cast<uint8_t>(scale);
    rounded.error.add(round_group<Code>(group, scale, codes + g * kCodeBytes));
  }
  return rounded;
}

template <typename Code>
void expand_all(const uint8_t* codes, const uint8_t* scales, std::span<float> values) {
  constexpr int kSign = 1 << (Code::kBits - 1), kPerByte = 8 / Code::kBits;
  for (size_t g = 0; g < values.size() / kGroup; ++g) {
    const float unit = power_of_two(scales[g] - kFloatBias);
    const uint8_t* const group = codes + g * kGroup / kPerByte;
    for (int i = 0; i < kGroup; i += kLanes) {
      Ints code;
      for (int lane = 0; lane < kLanes; ++lane)
        code[lane] = group[(i + lane) / kPerByte] >> (lane % kPerByte * Code::kBits);
      const Floats magnitude = Magnitude<Code>::expand(code & (kSign - 1)) * unit;
      const Floats number = floats_of(bits_of(magnitude) | ((code & kSign) << (32 - Code::kBits)));
      std::memcpy(values.data() + g * kGroup + i, &number, sizeof number);
    }
  }
}

}  // namespace

void RoundingError::add(const RoundingError& other) {
  squares += other.squares;
  error_squares += other.error_squares;
  largest = std::max(largest, other.largest);
}

double RoundingError::relative() const {
  return squares > 0 ? std::sqrt(error_squares / squares) : 0.0;
}

float largest_of(MatrixFormat format) {
  const float unit = power_of_two(ops::cuda::max_cell_scale(format) - kFloatBias);
  // Of MXFP4 numbers up to 7 have the scale of 6.
  return format == MatrixFormat::kMxfp8 ? 448 * unit : std::nextafter(7 * unit, 0.0f);
}

RoundedGroups round_groups(MatrixFormat format, std::span<const float> values, uint8_t* codes,
                           uint8_t* scales) {
  SPARROW_CHECK(is_mx(format) && values.size() % kGroup == 0);
  return format == MatrixFormat::kMxfp8 ? round_all<E4M3>(values, codes, scales)
                                        : round_all<E2M1>(values, codes, scales);
}

void expand_groups(MatrixFormat format, const uint8_t* codes, const uint8_t* scales,
                   std::span<float> values) {
  SPARROW_CHECK(is_mx(format) && values.size() % kGroup == 0);
  if (format == MatrixFormat::kMxfp8)
    expand_all<E4M3>(codes, scales, values);
  else
    expand_all<E2M1>(codes, scales, values);
}

}  // namespace sparrow
