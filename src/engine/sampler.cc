// SPDX-License-Identifier: Apache-2.0
#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sparrow {
namespace {

// Uniform in [0, 1): a hash of the counter, so that any draw can be made without the ones before it.
double uniform_draw(uint64_t seed, uint64_t step) {
  const auto mix = [](uint64_t x) {  // the finaliser of splitmix64
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  };
  return static_cast<double>(mix(mix(seed) ^ step) >> 11) * 0x1p-53;
}

}  // namespace

Status validate(const SamplingParams& params) {
  if (!(params.temperature >= 0) || std::isinf(params.temperature))
    return Error{Errc::kInvalidArgument,
                 strf("temperature must be a number >= 0, got {}", params.temperature)};
  if (!(params.top_p > 0 && params.top_p <= 1))
    return Error{Errc::kInvalidArgument, strf("top_p must be in (0, 1], got {}", params.top_p)};
  if (params.top_k < 0)
    return Error{Errc::kInvalidArgument, strf("top_k must be >= 0, got {}", params.top_k)};
  return Ok{};
}

std::optional<int32_t> argmax(std::span<const float> logits) {
  float best = -std::numeric_limits<float>::infinity();
  std::optional<int32_t> best_id;
  for (size_t id = 0; id < logits.size(); ++id) {
    const float logit = logits[id];
    if (std::isnan(logit) || logit == std::numeric_limits<float>::infinity()) return std::nullopt;
    if (logit > best) {
      best = logit;
      best_id = static_cast<int32_t>(id);
    }
  }
  return best_id;
}

std::optional<int32_t> Sampler::sample(std::span<const float> logits, const SamplingParams& params,
                                       uint64_t step) {
  const std::optional<int32_t> greedy = argmax(logits);
  if (params.temperature == 0 || !greedy) return greedy;

  candidates_.resize(logits.size());
  for (size_t id = 0; id < logits.size(); ++id) candidates_[id] = {logits[id], static_cast<int32_t>(id)};
  const auto more_probable = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  const size_t kept =
      params.top_k > 0 ? std::min<size_t>(params.top_k, candidates_.size()) : candidates_.size();
  if (kept < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(kept), candidates_.end(),
                     more_probable);
    candidates_.resize(kept);
  }
  std::sort(candidates_.begin(), candidates_.end(), more_probable);

  const double best = logits[*greedy];
  weights_.resize(candidates_.size());
  double total = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    weights_[i] = std::exp((candidates_[i].logit - best) / params.temperature);
    total += weights_[i];
  }
  size_t nucleus = candidates_.size();
  double mass = total;
  if (params.top_p < 1) {
    mass = 0;
    for (nucleus = 0; nucleus < candidates_.size() && (nucleus == 0 || mass < params.top_p * total);
         ++nucleus)
      mass += weights_[nucleus];
  }
  double left = uniform_draw(params.seed, step) * mass;
  for (size_t i = 0; i < nucleus; ++i) {
    left -= weights_[i];
    if (left < 0) return candidates_[i].id;
  }
  return candidates_[nucleus - 1].id;
}

}  // namespace sparrow
