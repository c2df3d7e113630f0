// SPDX-License-Identifier: Apache-2.0
// Bicubic with antialiasing in fixed point: weights in doubles, rounded once to the most bits that fit 16 in
// all of an axis.
#include "media/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "media/resize/passes.h"

namespace sparrow {
namespace {

constexpr int kMaxPrecision = 22;

// Keys' kernel, A = -0.5.
double kernel(double x) {
  constexpr double kA = -0.5;
  x = std::abs(x);
  if (x < 1) return ((kA + 2) * x - (kA + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * kA;
  return 0;
}

// An output's weights in doubles, summing to one.
void real_weights(double centre, double stretch, int first, int count, double* weights) {
  double sum = 0;
  for (int j = 0; j < count; ++j) sum += weights[j] = kernel((j + first - centre + 0.5) * (1 / stretch));
  for (int j = 0; j < count; ++j) weights[j] /= sum;
}

int precision_of(double largest) {
  int precision = 0;
  while (precision < kMaxPrecision && std::floor(0.5 + largest * (1 << (precision + 1))) < 1 << 15)
    ++precision;
  return precision;
}

uint8_t to_byte(int32_t sum, int precision) {
  return static_cast<uint8_t>(std::clamp(sum >> precision, 0, 255));
}

void width_pass(const uint8_t* in, int in_width, int rows, const AxisWeights& axis, uint8_t* out) {
  for (int y = 0; y < rows; ++y) {
    const uint8_t* row = in + int64_t{y} * in_width * 3;
    for (int x = 0; x < axis.outputs; ++x, out += 3) {
      const uint8_t* from = row + 3 * axis.first[x];
      const int16_t* weights = axis.of(x);
      for (int c = 0; c < 3; ++c) {
        int32_t sum = 1 << (axis.precision - 1);
        for (int j = 0; j < axis.count[x]; ++j) sum += from[3 * j + c] * weights[j];
        out[c] = to_byte(sum, axis.precision);
      }
    }
  }
}

void height_pass(const uint8_t* in, int64_t row_bytes, const AxisWeights& axis, uint8_t* out) {
  for (int y = 0; y < axis.outputs; ++y, out += row_bytes) {
    const uint8_t* from = in + axis.first[y] * row_bytes;
    const int16_t* weights = axis.of(y);
    for (int64_t x = 0; x < row_bytes; ++x) {
      int32_t sum = 1 << (axis.precision - 1);
      for (int j = 0; j < axis.count[y]; ++j) sum += from[j * row_bytes + x] * weights[j];
      out[x] = to_byte(sum, axis.precision);
    }
  }
}

}  // namespace

const ResizePasses kScalarPasses{width_pass, height_pass};

const ResizePasses& resize_passes() {
  return __builtin_cpu_supports("avx2") ? kAvx2Passes : kScalarPasses;
}

AxisWeights bicubic_weights(int in, int out) {
  const double scale = double(in) / out, stretch = std::max(scale, 1.0), support = 2 * stretch;
  AxisWeights axis{.outputs = out};
  for (int i = 0; i < out; ++i) {
    const double centre = scale * (i + 0.5);
    const int first = std::max(static_cast<int>(std::floor(centre - support + 0.5)), 0);
    axis.first.push_back(first);
    axis.count.push_back(std::min(static_cast<int>(std::floor(centre + support + 0.5)), in) - first);
  }
  axis.taps = (*std::ranges::max_element(axis.count) + 3) / 4 * 4;
  std::vector<double> real(int64_t{out} * axis.taps);
  for (int i = 0; i < out; ++i)
    real_weights(scale * (i + 0.5), stretch, axis.first[i], axis.count[i],
                 real.data() + int64_t{i} * axis.taps);
  axis.precision = precision_of(*std::ranges::max_element(real));
  axis.weights.reserve(real.size());
  for (const double w : real)  // halves away from zero
    axis.weights.push_back(static_cast<int16_t>(w * (1 << axis.precision) + (w < 0 ? -0.5 : 0.5)));
  return axis;
}

void resize_bicubic(const Image& in, ImageSize size, Image& out) {
  const ResizePasses& passes = resize_passes();
  const Image* source = &in;
  Image narrow;
  if (size.width != in.width) {
    narrow = {.width = size.width, .height = in.height};
    narrow.rgb.resize(size_t{3} * size.width * in.height);
    passes.width(in.rgb.data(), in.width, in.height, bicubic_weights(in.width, size.width),
                 narrow.rgb.data());
    source = &narrow;
  }
  if (size.height == in.height) {
    if (source == &in)
      out = in;
    else
      out = std::move(narrow);
    return;
  }
  out.width = size.width, out.height = size.height;
  out.rgb.resize(size_t{3} * size.width * size.height);
  passes.height(source->rgb.data(), int64_t{3} * size.width, bicubic_weights(in.height, size.height),
                out.rgb.data());
}

}  // namespace sparrow
