// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sparrow {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Error invalid(const char* field, std::string message) {
  return {Errc::kInvalidArgument, std::move(message), field};
}

// What draws are given of memory holds lists of this length.
Status check_size(size_t count, const char* field, int vocab_size) {
  if (count <= static_cast<size_t>(vocab_size)) return Ok{};
  return invalid(
      field, strf("{} holds {} entries, more than the {} ids of the vocabulary", field, count, vocab_size));
}

Status check_ids(std::span<const int32_t> ids, const char* field, int vocab_size) {
  for (const int32_t id : ids)
    if (id < 0 || id >= vocab_size)
      return invalid(field,
                     strf("{} holds {}, which is not in the vocabulary [0, {})", field, id, vocab_size));
  return Ok{};
}

Status check_finite(double value, const char* field) {
  if (!std::isfinite(value)) return invalid(field, strf("{} must be a finite number, got {}", field, value));
  return Ok{};
}

// The order of candidates: by logit, the lower id on ties.
constexpr auto kMoreProbable = [](const auto& a, const auto& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
};

// Penalties may push a logit out of range; a float that is still a number keeps its order.
float finite(double logit) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return logit == -kInfinity ? -kInfinity : static_cast<float>(std::clamp(logit, -kMax, kMax));
}

}  // namespace

double uniform_draw(uint64_t seed, uint64_t choice, uint64_t position) {
  const auto mix = [](uint64_t x) {  // the finaliser of splitmix64
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  };
  return static_cast<double>(mix(mix(mix(seed) ^ choice) ^ position) >> 11) * 0x1p-53;
}

Error logits_not_finite(uint64_t position) {
  return {Errc::kCorrupt, strf("the logits of output token {} are not finite numbers", position)};
}

Error no_id_left(uint64_t position) {
  return {Errc::kInvalidArgument,
          strf("no id is left for output token {}: allowed, banned and end ids exclude all", position)};
}

Status validate(const SamplingParams& params, int vocab_size) {
  if (!(params.temperature >= 0) || std::isinf(params.temperature))
    return invalid("temperature", strf("temperature must be a number >= 0, got {}", params.temperature));
  if (!(params.top_p > 0 && params.top_p <= 1))
    return invalid("top_p", strf("top_p must be in (0, 1], got {}", params.top_p));
  if (params.top_k < 0) return invalid("top_k", strf("top_k must be >= 0, got {}", params.top_k));
  if (!(params.min_p >= 0 && params.min_p <= 1))
    return invalid("min_p", strf("min_p must be in [0, 1], got {}", params.min_p));
  if (!(params.repetition_penalty > 0) || std::isinf(params.repetition_penalty))
    return invalid("repetition_penalty",
                   strf("repetition_penalty must be a number > 0, got {}", params.repetition_penalty));
  SPARROW_TRY(check_finite(params.presence_penalty, "presence_penalty"));
  SPARROW_TRY(check_finite(params.frequency_penalty, "frequency_penalty"));
  SPARROW_TRY(check_size(params.logit_bias.size(), "logit_bias", vocab_size));
  SPARROW_TRY(check_size(params.allowed_ids.size(), "allowed_token_ids", vocab_size));
  SPARROW_TRY(check_size(params.banned_ids.size(), "banned_token_ids", vocab_size));
  for (const auto& [id, bias] : params.logit_bias) {
    SPARROW_TRY(check_ids({&id, 1}, "logit_bias", vocab_size));
    if (!std::isfinite(bias))
      return invalid("logit_bias", strf("logit_bias of id {} must be a finite number, got {}", id, bias));
  }
  SPARROW_TRY(check_ids(params.allowed_ids, "allowed_token_ids", vocab_size));
  return check_ids(params.banned_ids, "banned_token_ids", vocab_size);
}

std::optional<int32_t> argmax(std::span<const float> logits) {
  float best = -kInfinity;
  std::optional<int32_t> best_id;
  for (size_t id = 0; id < logits.size(); ++id) {
    const float logit = logits[id];
    if (std::isnan(logit) || logit == kInfinity) return std::nullopt;
    if (logit > best) {
      best = logit;
      best_id = static_cast<int32_t>(id);
    }
  }
  return best_id;
}

void Sampler::mask(const SampleRow& row) {
  const auto ban = [&](std::span<const int32_t> ids) {
    for (const int32_t id : ids) adjusted_[id] = -kInfinity;
  };
  for (const std::span<const int32_t> allowed : {std::span(row.params.allowed_ids), row.only}) {
    if (allowed.empty()) continue;
    kept_.clear();
    for (const int32_t id : allowed) kept_.emplace_back(id, adjusted_[id]);
    std::fill(adjusted_.begin(), adjusted_.end(), -kInfinity);
    for (const auto& [id, logit] : kept_) adjusted_[id] = logit;
  }
  if (!row.mask.empty())
    for (size_t id = 0; id < adjusted_.size(); ++id)
      if ((row.mask[id / 32] >> (id % 32) & 1) == 0) adjusted_[id] = -kInfinity;
  ban(row.params.banned_ids);
  ban(row.more_banned);
}

std::span<const float> Sampler::adjust(const SampleRow& row) {
  const SamplingParams& params = row.params;
  const bool penalties = params.has_penalties() && row.counts;
  if (!penalties && params.logit_bias.empty() && params.allowed_ids.empty() && params.banned_ids.empty() &&
      row.more_banned.empty() && row.only.empty() && row.mask.empty())
    return row.logits;
  adjusted_.assign(row.logits.begin(), row.logits.end());
  if (penalties) {
    for (const auto& [id, count] : row.counts->output_count()) {
      double logit = adjusted_[id];
      logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
      logit -= count * params.frequency_penalty + (count > 0 ? params.presence_penalty : 0.0);
      adjusted_[id] = finite(logit);
    }
  }
  for (const auto& [id, bias] : params.logit_bias) adjusted_[id] = finite(double{adjusted_[id]} + bias);
  mask(row);
  return adjusted_;
}

size_t Sampler::nucleus(double wanted_mass, size_t num_sorted) {
  double mass = 0;
  size_t taken = 0;
  while (taken < candidates_.size() && (taken == 0 || mass < wanted_mass)) {
    if (taken == num_sorted) {  // the nucleus is small as a rule: sort only as much as it needs
      num_sorted = std::min(candidates_.size(), std::max<size_t>(64, 4 * num_sorted));
      const auto begin = candidates_.begin();
      if (num_sorted < candidates_.size())
        std::nth_element(begin + taken, begin + num_sorted, candidates_.end(), kMoreProbable);
      std::sort(begin + taken, begin + num_sorted, kMoreProbable);
    }
    mass += candidates_[taken++].weight;
  }
  return taken;
}

size_t Sampler::filter(const SamplingParams& params, float best) {
  size_t num_sorted = 0;
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + params.top_k, candidates_.end(),
                     kMoreProbable);
    candidates_.resize(params.top_k);
    std::sort(candidates_.begin(), candidates_.end(), kMoreProbable);
    num_sorted = candidates_.size();
  }
  double total = 0;
  for (Candidate& candidate : candidates_) {
    candidate.weight = std::exp((double{candidate.logit} - best) / params.temperature);
    total += candidate.weight;
  }
  if (params.top_p < 1) candidates_.resize(nucleus(params.top_p * total, num_sorted));
  // The best candidate weighs 1 and always stays.
  if (params.min_p > 0)
    std::erase_if(candidates_, [&](const Candidate& candidate) { return candidate.weight < params.min_p; });
  return candidates_.size();
}

Result<int32_t> Sampler::sample(const SampleRow& row) {
  if (!argmax(row.logits)) return logits_not_finite(row.position);
  const std::span<const float> logits = adjust(row);
  const std::optional<int32_t> greedy = argmax(logits);
  if (!greedy) return no_id_left(row.position);
  if (row.params.temperature == 0) return *greedy;

  candidates_.clear();
  for (size_t id = 0; id < logits.size(); ++id)
    if (logits[id] != -kInfinity) candidates_.push_back({logits[id], static_cast<int32_t>(id), 0.0});
  const size_t count = filter(row.params, logits[*greedy]);
  double left = 0;
  for (size_t i = 0; i < count; ++i) left += candidates_[i].weight;
  left *= uniform_draw(row.params.seed, row.choice, row.position);
  for (size_t i = 0; i < count; ++i) {
    left -= candidates_[i].weight;
    if (left < 0) return candidates_[i].id;
  }
  // Rounding left a crumb past the last one: the last that has any weight.
  for (size_t i = count; i-- > 0;)
    if (candidates_[i].weight > 0) return candidates_[i].id;
  return *greedy;
}

TokenLogprobs logprobs_of(std::span<const float> logits, int32_t id, int num_top) {
  struct Entry {
    float logit;
    int32_t id;
  };
  const float best = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  int rank = 1;
  std::vector<Entry> top;  // sorted; short
  const size_t wanted = std::min<size_t>(num_top, logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    sum += std::exp(double{logits[i]} - best);
    const Entry entry{logits[i], static_cast<int32_t>(i)};
    rank += kMoreProbable(entry, Entry{logits[id], id});
    if (wanted == 0 || (top.size() == wanted && !kMoreProbable(entry, top.back()))) continue;
    if (top.size() == wanted) top.pop_back();
    top.insert(std::upper_bound(top.begin(), top.end(), entry, kMoreProbable), entry);
  }
  const double log_total = best + std::log(sum);
  const auto logprob = [&](int32_t of) {
    return TokenLogprob{of, static_cast<float>(double{logits[of]} - log_total)};
  };
  TokenLogprobs result{.token = logprob(id), .rank = rank, .top = {}};
  for (const Entry& entry : top) result.top.push_back(logprob(entry.id));
  return result;
}

}  // namespace sparrow
