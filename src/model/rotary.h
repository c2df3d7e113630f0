// SPDX-License-Identifier: Apache-2.0
// Rotary frequencies, plain or stretched by YaRN.
#pragma once

#include <vector>

#include "config/config.h"

namespace sparrow {

struct RotaryFrequencies {
  std::vector<float> inv_freq;    // [rotary_dim / 2]
  float attention_factor = 1.0f;  // multiplies cos and sin
};

RotaryFrequencies rotary_frequencies(const RopeConfig& config);

}  // namespace sparrow
