// SPDX-License-Identifier: Apache-2.0
#include "engine/sim/sim_runner.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace sparrow {
namespace {

constexpr float kLogprob = -1.0f;  // of every id: there is no distribution

TokenLogprobs logprobs_of_any(int32_t id, int num_top) {
  TokenLogprobs logprobs{.token = {id, kLogprob}, .rank = 1};
  if (num_top > 0) logprobs.top.push_back({id, kLogprob});
  return logprobs;
}

bool contains(std::span<const int32_t> ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

Result<std::unique_ptr<SimRunner>> SimRunner::create(const ModelConfig& config, const SimOptions& options,
                                                     int64_t cache_tokens) {
  if (cache_tokens == 0) cache_tokens = options.cost.cache_tokens;
  if (cache_tokens < 1)
    return Error{Errc::kInvalidArgument,
                 "the cost model does not say how many tokens the cache holds: give --kv-cache-memory"};
  if (!(options.output_tokens >= 1))
    return Error{Errc::kInvalidArgument,
                 strf("output_tokens must be at least 1, got {}", options.output_tokens)};
  return std::unique_ptr<SimRunner>(new SimRunner(config, options, blocks_for_tokens(cache_tokens)));
}

SimRunner::SimRunner(const ModelConfig& config, const SimOptions& options, int64_t num_blocks)
    : config_(config), options_(options) {
  info_ = {.device = "simulated: " + options.cost.name,
           .kernels = "none",
           .num_blocks = static_cast<int>(num_blocks),
           .cache_tokens = num_blocks * kBlockTokens,
           .run_ahead = true};
}

// Groups run side by side, and the slowest is waited for.
void SimRunner::run(const Batch& batch, Capture*) {
  double us = 0;
  for (int group = 0; group < batch.num_groups(); ++group) {
    const GroupBegin begin = group_begin(batch, group), end = group_begin(batch, group + 1);
    StepShape shape;
    for (int s = begin.sequence; s < end.sequence; ++s)
      shape.add(batch.cu_seqlens_q[s + 1] - batch.cu_seqlens_q[s], batch.seq_lens[s], 0);
    shape.logit_rows = end.logit - begin.logit;
    us = std::max(us, options_.cost.step_us(shape));
  }
  const Clock::time_point now = Clock::now();
  if (free_at_ < now) us += options_.cost.host_us;
  free_at_ = std::max(now, free_at_) +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::micro>(us));
}

void SimRunner::start_draws(std::span<const DrawRequest> draws) {
  Step& step = steps_.emplace_back(Step{.end = free_at_});
  for (const DrawRequest& request : draws) {
    const std::optional<int32_t> id = draw(request.sample);
    if (!id) {
      step.draws.push_back({no_id_left(request.sample.position), std::nullopt});
      continue;
    }
    Draw& drawn = step.draws.emplace_back(Draw{*id, std::nullopt});
    if (request.num_top_logprobs) drawn.logprobs = logprobs_of_any(*id, *request.num_top_logprobs);
  }
}

std::vector<Draw> SimRunner::finish_draws() {
  Step step = std::move(steps_.front());
  steps_.pop_front();
  std::this_thread::sleep_until(step.end);
  return std::move(step.draws);
}

std::vector<std::optional<TokenLogprobs>> SimRunner::score(std::span<const PromptRow> rows) {
  std::vector<std::optional<TokenLogprobs>> scores;
  for (const PromptRow& row : rows) scores.push_back(logprobs_of_any(row.id, row.num_top));
  return scores;
}

// What may be drawn is as a sampler has it; among that, all are alike. nullopt: nothing may.
std::optional<int32_t> SimRunner::draw(const SampleRow& row) const {
  const uint64_t seed = row.params.seed ^ options_.seed;
  const auto may_be = [&](int32_t id) {
    return !contains(row.more_banned, id) && !contains(row.params.banned_ids, id) &&
           (row.only.empty() || contains(row.only, id)) &&
           (row.mask.empty() || (row.mask[id / 32] >> (id % 32) & 1) != 0) &&
           (row.params.allowed_ids.empty() || contains(row.params.allowed_ids, id));
  };
  if (uniform_draw(seed + 1, row.choice, row.position) * options_.output_tokens < 1)
    for (const int32_t end : config_.eos_token_ids)
      if (may_be(end)) return end;
  // One of a list, from a place in it on that is drawn.
  const auto one_of = [&](int64_t size, auto id_at, bool is_in_order = false) -> std::optional<int32_t> {
    const double place = uniform_draw(seed + 2, row.choice, row.position);
    const auto first = static_cast<int64_t>(place * static_cast<double>(size));
    for (int64_t i = 0; i < size; ++i) {
      const int64_t at = (first + i) % size;
      const int32_t id = id_at(at);
      if (may_be(id)) return id;
      // Most words of a mask are empty.
      if (is_in_order && id % 32 == 0 && row.mask[id / 32] == 0) i += std::min<int64_t>(31, size - 1 - at);
    }
    return std::nullopt;
  };
  const std::span<const int32_t> listed = row.only.empty() ? std::span(row.params.allowed_ids) : row.only;
  if (!listed.empty())
    return one_of(static_cast<int64_t>(listed.size()), [&](int64_t i) { return listed[i]; });
  if (!row.mask.empty())
    return one_of(
        config_.vocab_size, [](int64_t i) { return static_cast<int32_t>(i); }, true);
  // Text: control tokens have the last ids, and bytes the first.
  const int64_t low = config_.vocab_size / 8;
  return one_of(config_.vocab_size / 2, [low](int64_t i) { return static_cast<int32_t>(low + i); });
}

}  // namespace sparrow
