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

// Uniform in [0, 1): a hash of the counter, so that any draw can be made without the ones before it.
double uniform_draw(uint64_t seed, uint64_t choice, uint64_t position);

// Why there is no output token at this position.
Error logits_not_finite(uint64_t position);
Error no_id_left(uint64_t position);

// The ids that penalties count: those of the prompt once, those of the output as often as they came.
class TokenCounts {
 public:
  void add_prompt(std::span<const int32_t> ids) {
    for (const int32_t id : ids) output_count_.try_emplace(id, 0);
  }
  void add_output(int32_t id) { ++output_count_[id]; }
  void set_output_count(int32_t id, int count) { output_count_[id] = count; }
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
  std::span<const int32_t> only = {};         // of those that params allow; empty: all
  std::span<const uint32_t> mask = {};        // the same as bits by id; empty: all
  uint64_t choice = 0, position = 0;          // which of n; in the output
};

// One draw from a row of a step's logits. Apart from the Batch: it comes after the step, and only who draws
// needs it.
struct DrawRequest {
  int64_t row = 0;
  SampleRow sample;                     // the runner fills its logits in
  std::optional<int> num_top_logprobs;  // wanted beside that of the drawn id; nullopt: none at all
};

struct Draw {
  Result<int32_t> id;
  std::optional<TokenLogprobs> logprobs;
};

// A row of a step's logits that tells the probability of the prompt's next id.
struct PromptRow {
  int64_t row = 0;
  int32_t id = 0;
  int num_top = 0;
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
