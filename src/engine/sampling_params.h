// SPDX-License-Identifier: Apache-2.0
// SamplingParams: how an id is drawn from a row of logits. Plain data, any thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/result.h"

namespace sparrow {

// Applied in this order, each to what the one before left: repetition, frequency and presence penalty; bias;
// allowed and banned ids; temperature; top-k; top-p; min-p. Penalties and masks hold for greedy draws too.
struct SamplingParams {
  double temperature = 1.0;  // 0: greedy, the lower id on ties
  double top_p = 1.0;        // smallest set of ids whose probability reaches this; (0, 1]
  int top_k = 0;             // only the k most probable ids; 0: all
  double min_p = 0.0;        // only ids at least this times as probable as the best one; [0, 1]
  double repetition_penalty =
      1.0;  // divides positive and multiplies negative logits of ids seen in prompt or output
  double presence_penalty = 0.0;                      // subtracted from the logit of an id in the output
  double frequency_penalty = 0.0;                     // the same, for each time it occurs
  std::vector<std::pair<int32_t, float>> logit_bias;  // added to the logit of an id
  std::vector<int32_t> allowed_ids;                   // only these; empty: all
  std::vector<int32_t> banned_ids;
  // A draw depends on the seed, the choice (of n) and the position in the output alone.
  uint64_t seed = 0;

  bool has_penalties() const {
    return repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0;
  }
};

// Names the first field that makes no sense, and its value.
Status validate(const SamplingParams& params, int vocab_size);

}  // namespace sparrow
