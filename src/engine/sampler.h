// SPDX-License-Identifier: Apache-2.0
// Sampler: logits of one row -> one id. The draw for a request's n-th token depends on its seed and n alone,
// never on the batch it ran in.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"

namespace sparrow {

struct SamplingParams {
  double temperature = 1.0;  // 0: greedy
  double top_p = 1.0;        // smallest set of ids whose probability reaches this; (0, 1]
  int top_k = 0;             // only the k most probable ids; 0: all
  uint64_t seed = 0;
};

// Names the first field that makes no sense.
Status validate(const SamplingParams& params);

// The most probable id; the lower one on ties. nullopt: the logits hold a NaN or +infinity.
std::optional<int32_t> argmax(std::span<const float> logits);

class Sampler {
 public:
  // Draws the id of the `step`-th output token. nullopt: the logits are not numbers to sample from.
  std::optional<int32_t> sample(std::span<const float> logits, const SamplingParams& params, uint64_t step);

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };

  std::vector<Candidate> candidates_;
  std::vector<double> weights_;
};

}  // namespace sparrow
