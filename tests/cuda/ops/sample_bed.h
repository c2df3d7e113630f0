// SPDX-License-Identifier: Apache-2.0
// Bed: rows of logits and draws from them, for the engine's Sampler and for the one on the device.
#pragma once

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "engine/cpu/sampler.h"
#include "ops/cuda/sample/sample.h"
#include "ops/sample_batch.h"

namespace sparrow::ops::cuda::test_bed {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Draw {
  int logits_row = 0;
  SamplingParams params;
  TokenCounts counts;
  std::vector<int32_t> more_banned;
  std::vector<uint32_t> mask;  // bits of the ids that may be drawn; empty: all
  uint64_t position = 0;
};

struct Drawn {
  int32_t id;
  SampleStatus status;
  bool operator==(const Drawn&) const = default;
};

inline void PrintTo(const Drawn& drawn, std::ostream* out) {
  *out << "id " << drawn.id << ", status " << static_cast<int>(drawn.status);
}

// Rows of logits and what is drawn from them.
struct Bed {
  int vocabulary;
  int64_t row_stride;
  std::vector<float> logits;
  std::vector<Draw> draws;

  explicit Bed(int size, int64_t stride = 0)
      : vocabulary(size), row_stride(stride ? stride : (size + 3) / 4 * 4) {}

  // Adds a row and returns its number.
  int add_row(const std::vector<float>& row) {
    const size_t first = logits.size();
    logits.resize(first + row_stride, NAN);
    std::copy(row.begin(), row.end(), logits.begin() + static_cast<ptrdiff_t>(first));
    return static_cast<int>(first / row_stride);
  }
  Draw& add(int row, const SamplingParams& params) {
    draws.push_back({.logits_row = row, .params = params, .position = draws.size()});
    return draws.back();
  }

  std::vector<Drawn> on_cpu() const {
    Sampler sampler;
    std::vector<Drawn> result;
    for (const Draw& draw : draws) {
      Result<int32_t> id = sampler.sample(
          {.logits = {logits.data() + draw.logits_row * row_stride, static_cast<size_t>(vocabulary)},
           .params = draw.params,
           .counts = &draw.counts,
           .more_banned = draw.more_banned,
           .mask = draw.mask,
           .position = draw.position});
      if (id.ok())
        result.push_back({*id, SampleStatus::kOk});
      else
        result.push_back(
            {-1, id.error().code == Errc::kCorrupt ? SampleStatus::kNotFinite : SampleStatus::kNothingLeft});
    }
    return result;
  }

  SampleBatch batch() const {
    SampleBatch batch;
    for (const Draw& draw : draws) {
      std::vector<SeenId> seen;
      for (const auto& [id, count] : draw.counts.output_count()) seen.push_back({id, count});
      const SamplingParams& p = draw.params;
      batch.add_row({.logits_row = draw.logits_row,
                     .temperature = p.temperature,
                     .top_p = p.top_p,
                     .top_k = p.top_k,
                     .min_p = p.min_p,
                     .repetition_penalty = p.repetition_penalty,
                     .presence_penalty = p.presence_penalty,
                     .frequency_penalty = p.frequency_penalty,
                     .draw = uniform_draw(p.seed, 0, draw.position),
                     .seen = seen,
                     .bias = p.logit_bias,
                     .allowed = p.allowed_ids,
                     .banned = p.banned_ids,
                     .more_banned = draw.more_banned,
                     .mask = draw.mask});
    }
    return batch;
  }
};

inline std::vector<float> normal_row(std::mt19937& rng, int size, float spread) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> row(size);
  for (auto& x : row) x = normal(rng);
  return row;
}

// Rows of every kind that is hard on a search through histograms.
inline std::vector<std::vector<float>> odd_rows(int size) {
  std::mt19937 rng(5);
  std::vector<std::vector<float>> rows(8, std::vector<float>(size, 0.5f));  // 0: all equal
  for (int i = 0; i < size; ++i) {
    rows[1][i] = i % 3 == 0 ? 2.0f : 1.0f;                             // long ties of two kinds
    rows[2][i] = i == size / 2 ? 20.0f : 1e-4f * float(rng() % 1000);  // one far above a dense crowd
    rows[3][i] = i % 2 ? -0.0f : 0.0f;                                 // equal zeros of both signs
    rows[4][i] = i % 5 == 0 ? -kInfinity : -float(i);                  // infinities, a steep slope
    rows[5][i] = (i % 7) * 1e38f - 3e38f;                              // the whole range of f32
    rows[6][i] = i < 3 ? 30.0f : -1e30f;                               // a few against nothing
    rows[7][i] = 1.0f + 1e-7f * float(rng() % 16);                     // a few steps of the last place
  }
  return rows;
}

}  // namespace sparrow::ops::cuda::test_bed
