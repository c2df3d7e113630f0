// SPDX-License-Identifier: Apache-2.0
#include "model/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/dtype.h"

namespace sparrow {
namespace {

// Share of interpolation for each frequency: 0 keeps it, 1 divides it by the factor.
std::vector<double> yarn_ramp(const RopeConfig& config) {
  const int half = config.rotary_dim / 2;
  // The channel pair that turns `rotations` times over the original context.
  const auto pair_of = [&](double rotations) {
    const double length = static_cast<double>(config.original_max_positions);
    return config.rotary_dim * std::log(length / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(config.theta));
  };
  double low = pair_of(config.beta_fast), high = pair_of(config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, config.rotary_dim - 1.0);
  if (low == high) high += 0.001;
  std::vector<double> ramp(half);
  for (int i = 0; i < half; ++i) ramp[i] = std::clamp((i - low) / (high - low), 0.0, 1.0);
  return ramp;
}

}  // namespace

RotaryFrequencies rotary_frequencies(const RopeConfig& config) {
  const int half = config.rotary_dim / 2;
  RotaryFrequencies result{.inv_freq = std::vector<float>(half)};
  const std::vector<double> ramp = config.yarn ? yarn_ramp(config) : std::vector<double>(half, 0.0);
  for (int i = 0; i < half; ++i) {
    const double plain = std::pow(config.theta, -2.0 * i / config.rotary_dim);
    result.inv_freq[i] =
        static_cast<float>(plain * (config.yarn ? ramp[i] / config.factor + (1 - ramp[i]) : 1.0));
  }
  if (config.round_frequencies)
    for (float& frequency : result.inv_freq) frequency = to_float(to_bf16(frequency));
  if (config.yarn) {
    const double grown = config.factor > 1 ? 0.1 * std::log(config.factor) + 1 : 1.0;
    result.attention_factor = static_cast<float>(config.attention_factor.value_or(grown));
  }
  return result;
}

}  // namespace sparrow
