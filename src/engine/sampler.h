// SPDX-License-Identifier: Apache-2.0
// Sampler: logits of one row -> one id. A draw depends on the row and on the request's seed, choice and
// position alone, never on the batch it ran in.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "engine/sampling_params.h"

namespace sparrow {

// The most probable id; the lower one on ties. nullopt: the logits hold a NaN or +infinity, or nothing but
// -infinity.
std::optional<int32_t> argmax(std::span<const float> logits);

// The ids that penalties count: those of the prompt once, those of the output as often as they came.
class TokenCounts {
 public:
  void add_prompt(std::span<const int32_t> ids) {
    for (const int32_t id : ids) output_count_.try_emplace(id, 0);
  }
  void add_output(int32_t id) { ++output_count_[id]; }
  const std::unordered_map<int32_t, int>& output_count() const { return output_count_; }

 private:
  std::unordered_map<int32_t, int> output_count_;  // of every id seen; 0: in the prompt only
};

// One draw.
struct SampleRow {
  std::span<const float> logits;  // [vocabulary]
  const SamplingParams& params;
  const TokenCounts* counts = nullptr;        // may be null where no penalty is set
  std::span<const int32_t> more_banned = {};  // beside those of params
  uint64_t choice = 0, position = 0;          // which of n; in the output
};

class Sampler {
 public:
  // Error: the logits are not numbers to sample from, or every id is banned.
  Result<int32_t> sample(const SampleRow& row);

 private:
  struct Candidate {
    float logit;
    int32_t id;
    double weight;
  };

  std::span<const float> adjust(const SampleRow& row);
  void mask(const SampleRow& row);
  // Leaves the candidates to draw from in front and returns how many.
  size_t filter(const SamplingParams& params, float best);
  size_t nucleus(double wanted_mass, size_t num_sorted);

  std::vector<float> adjusted_;
  std::vector<std::pair<int32_t, float>> kept_;
  std::vector<Candidate> candidates_;
};

// Log-probability of `id` under the softmax of the row, and of the `num_top` most probable ids.
TokenLogprobs logprobs_of(std::span<const float> logits, int32_t id, int num_top);

}  // namespace sparrow
