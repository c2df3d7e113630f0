// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/device_sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "device/cuda/check.h"

namespace sparrow {

using ops::cuda::LogprobsRow;
using ops::cuda::SampleStatus;

void DeviceSampler::add_row(const DrawRequest& draw) {
  const SampleRow& row = draw.sample;
  const SamplingParams& params = row.params;
  seen_.clear();
  if (params.has_penalties() && row.counts)
    for (const auto& [id, count] : row.counts->output_count()) seen_.push_back({id, count});
  std::span<const int32_t> allowed = params.allowed_ids;
  if (allowed.empty()) {
    allowed = row.only;
  } else if (!row.only.empty()) {
    allowed_.clear();
    for (const int32_t id : row.only)
      if (std::find(allowed.begin(), allowed.end(), id) != allowed.end()) allowed_.push_back(id);
    // Nothing in common: an id that is banned as well leaves nothing to draw.
    allowed = allowed_.empty() ? row.only.first(1) : std::span<const int32_t>(allowed_);
  }
  const bool nothing = !params.allowed_ids.empty() && !row.only.empty() && allowed_.empty();
  batch_.add_row({.logits_row = static_cast<int>(draw.row),
                  .temperature = params.temperature,
                  .top_p = params.top_p,
                  .top_k = params.top_k,
                  .min_p = params.min_p,
                  .repetition_penalty = params.repetition_penalty,
                  .presence_penalty = params.presence_penalty,
                  .frequency_penalty = params.frequency_penalty,
                  .draw = uniform_draw(params.seed, row.choice, row.position),
                  .seen = seen_,
                  .bias = params.logit_bias,
                  .allowed = allowed,
                  .banned = params.banned_ids,
                  .more_banned = nothing ? row.only.first(1) : row.more_banned});
}

void DeviceSampler::launch(Run& run, const DeviceLogits& logits, cudaStream_t stream) {
  size_t used = 0;
  const auto take = [&](size_t bytes) {
    const size_t offset = used;
    used = (used + bytes + 15) / 16 * 16;
    return offset;
  };
  const auto rows = static_cast<size_t>(batch_.rows());
  const size_t wanted = run.wanted.size();
  Layout& l = run.layout;
  l = {.vocabulary = logits.vocabulary};
  for (const LogprobsRow& row : run.wanted) l.top_stride = std::max(l.top_stride, row.num_top);
  const size_t tops = wanted * static_cast<size_t>(l.top_stride);
  l.batch = take(batch_.bytes());
  l.wanted = take(wanted * sizeof(LogprobsRow));
  l.ids = take(rows * sizeof(int32_t));
  l.status = take(rows * sizeof(SampleStatus));
  l.logprob = take(wanted * sizeof(float));
  l.rank = take(wanted * sizeof(int32_t));
  l.top_ids = take(tops * sizeof(int32_t));
  l.top_logprobs = take(tops * sizeof(float));
  l.end = used;
  if (run.host.bytes() < used) {
    constexpr size_t kFirstBytes = size_t{4} << 20;  // nobody needs more as a rule
    const size_t bytes = std::max(kFirstBytes, 2 * used);
    run.host = PinnedBuffer::allocate(bytes).value();
    run.device = DeviceBuffer::allocate(bytes).value();
  }

  std::byte *host = run.host.data(), *device = run.device.data();
  batch_.pack(host + l.batch);
  if (wanted > 0) std::memcpy(host + l.wanted, run.wanted.data(), wanted * sizeof(LogprobsRow));
  SPARROW_CUDA(cudaMemcpyAsync(device, host, l.ids, cudaMemcpyHostToDevice, stream));
  auto* ids = reinterpret_cast<int32_t*>(device + l.ids);
  if (rows > 0)
    ops::cuda::sample({.logits = logits.data,
                       .row_stride = logits.vocabulary,
                       .batch = device + l.batch,
                       .ids = ids,
                       .status = reinterpret_cast<SampleStatus*>(device + l.status),
                       .rows = batch_.rows(),
                       .vocabulary = logits.vocabulary,
                       .plain_greedy = batch_.plain_greedy()},
                      stream);
  if (wanted > 0)
    ops::cuda::logprobs({.logits = logits.data,
                         .row_stride = logits.vocabulary,
                         .wanted = reinterpret_cast<const LogprobsRow*>(device + l.wanted),
                         .sampled_ids = ids,
                         .logprob = reinterpret_cast<float*>(device + l.logprob),
                         .rank = reinterpret_cast<int32_t*>(device + l.rank),
                         .top_ids = reinterpret_cast<int32_t*>(device + l.top_ids),
                         .top_logprobs = reinterpret_cast<float*>(device + l.top_logprobs),
                         .rows = static_cast<int>(wanted),
                         .top_stride = l.top_stride,
                         .vocabulary = logits.vocabulary},
                        stream);
  SPARROW_CUDA(cudaMemcpyAsync(host + l.ids, device + l.ids, l.end - l.ids, cudaMemcpyDeviceToHost, stream));
  run.done.record(stream);
}

TokenLogprobs DeviceSampler::Run::logprobs_at(int row, int32_t id) const {
  const auto* logprob = reinterpret_cast<const float*>(host.data() + layout.logprob);
  const auto* rank = reinterpret_cast<const int32_t*>(host.data() + layout.rank);
  const auto* top_ids = reinterpret_cast<const int32_t*>(host.data() + layout.top_ids);
  const auto* top_logprobs = reinterpret_cast<const float*>(host.data() + layout.top_logprobs);
  TokenLogprobs result{.token = {id, logprob[row]}, .rank = rank[row], .top = {}};
  const int count = std::min(wanted[static_cast<size_t>(row)].num_top, layout.vocabulary);
  for (int i = 0; i < count; ++i) {
    const size_t at = static_cast<size_t>(row) * layout.top_stride + i;
    result.top.push_back({top_ids[at], top_logprobs[at]});
  }
  return result;
}

void DeviceSampler::start(const DeviceLogits& logits, std::span<const DrawRequest> draws,
                          cudaStream_t stream) {
  SPARROW_CHECK_LT(num_started_ - num_finished_, runs_.size());
  Run& run = runs_[num_started_++ % runs_.size()];
  batch_.clear();
  run.wanted.clear();
  run.positions.clear();
  for (size_t i = 0; i < draws.size(); ++i) {
    add_row(draws[i]);
    run.positions.push_back(draws[i].sample.position);
    if (draws[i].num_top_logprobs)
      run.wanted.push_back({.logits_row = static_cast<int32_t>(draws[i].row),
                            .id = -1,
                            .sampled = static_cast<int32_t>(i),
                            .num_top = *draws[i].num_top_logprobs});
  }
  if (!draws.empty()) launch(run, logits, stream);
}

const int32_t* DeviceSampler::ids() const {
  const Run& run = runs_[(num_started_ - 1) % runs_.size()];
  return reinterpret_cast<const int32_t*>(run.device.data() + run.layout.ids);
}

std::vector<Draw> DeviceSampler::finish() {
  SPARROW_CHECK_LT(num_finished_, num_started_);
  Run& run = runs_[num_finished_++ % runs_.size()];
  std::vector<Draw> drawn;
  if (run.positions.empty()) return drawn;
  run.done.wait();
  const auto* ids = reinterpret_cast<const int32_t*>(run.host.data() + run.layout.ids);
  const auto* status = reinterpret_cast<const SampleStatus*>(run.host.data() + run.layout.status);
  drawn.reserve(run.positions.size());
  size_t next_logprobs = 0;
  for (size_t i = 0; i < run.positions.size(); ++i) {
    const bool has_logprobs =
        next_logprobs < run.wanted.size() && run.wanted[next_logprobs].sampled == static_cast<int32_t>(i);
    const int logprobs_row = has_logprobs ? static_cast<int>(next_logprobs++) : -1;
    switch (status[i]) {
      case SampleStatus::kOk:
        drawn.push_back({ids[i], std::nullopt});
        if (logprobs_row >= 0) drawn.back().logprobs = run.logprobs_at(logprobs_row, ids[i]);
        break;
      case SampleStatus::kNotFinite:
        drawn.push_back({logits_not_finite(run.positions[i]), std::nullopt});
        break;
      case SampleStatus::kNothingLeft:
        drawn.push_back({no_id_left(run.positions[i]), std::nullopt});
        break;
    }
  }
  return drawn;
}

std::vector<std::optional<TokenLogprobs>> DeviceSampler::score(const DeviceLogits& logits,
                                                               std::span<const PromptRow> rows,
                                                               cudaStream_t stream) {
  SPARROW_CHECK_EQ(num_started_, num_finished_);
  if (rows.empty()) return {};
  Run& run = runs_[0];
  batch_.clear();
  run.wanted.clear();
  for (const PromptRow& row : rows)
    run.wanted.push_back(
        {.logits_row = static_cast<int32_t>(row.row), .id = row.id, .sampled = 0, .num_top = row.num_top});
  launch(run, logits, stream);
  run.done.wait();
  std::vector<std::optional<TokenLogprobs>> scores;
  scores.reserve(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    TokenLogprobs score = run.logprobs_at(static_cast<int>(i), rows[i].id);
    if (std::isnan(score.token.logprob))
      scores.push_back(std::nullopt);
    else
      scores.push_back(std::move(score));
  }
  return scores;
}

}  // namespace sparrow
