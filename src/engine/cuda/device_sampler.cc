// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/device_sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "device/cuda/check.h"

namespace sparrow {

using ops::cuda::LogprobsRow;
using ops::cuda::SampleStatus;

struct DeviceSampler::Layout {
  size_t batch, wanted;  // sent
  size_t ids, status, logprob, top_ids, top_logprobs, end;
  int top_stride, vocabulary;
};

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

DeviceSampler::Layout DeviceSampler::run(const DeviceLogits& logits, cudaStream_t stream) {
  size_t used = 0;
  const auto take = [&](size_t bytes) {
    const size_t offset = used;
    used = (used + bytes + 15) / 16 * 16;
    return offset;
  };
  const auto rows = static_cast<size_t>(batch_.rows());
  const size_t wanted = wanted_.size();
  Layout l{};
  l.vocabulary = logits.vocabulary;
  for (const LogprobsRow& row : wanted_) l.top_stride = std::max(l.top_stride, row.num_top);
  const size_t tops = wanted * static_cast<size_t>(l.top_stride);
  l.batch = take(batch_.bytes());
  l.wanted = take(wanted * sizeof(LogprobsRow));
  l.ids = take(rows * sizeof(int32_t));
  l.status = take(rows * sizeof(SampleStatus));
  l.logprob = take(wanted * sizeof(float));
  l.top_ids = take(tops * sizeof(int32_t));
  l.top_logprobs = take(tops * sizeof(float));
  l.end = used;
  if (host_.bytes() < used) {
    constexpr size_t kFirstBytes = size_t{4} << 20;  // nobody needs more as a rule
    const size_t bytes = std::max(kFirstBytes, 2 * used);
    host_ = PinnedBuffer::allocate(bytes).value();
    device_ = DeviceBuffer::allocate(bytes).value();
  }

  batch_.pack(host_.data() + l.batch);
  if (wanted > 0) std::memcpy(host_.data() + l.wanted, wanted_.data(), wanted * sizeof(LogprobsRow));
  SPARROW_CUDA(cudaMemcpyAsync(device_.data(), host_.data(), l.ids, cudaMemcpyHostToDevice, stream));
  auto* ids = reinterpret_cast<int32_t*>(device_.data() + l.ids);
  if (rows > 0)
    ops::cuda::sample({.logits = logits.data,
                       .row_stride = logits.vocabulary,
                       .batch = device_.data() + l.batch,
                       .ids = ids,
                       .status = reinterpret_cast<SampleStatus*>(device_.data() + l.status),
                       .rows = batch_.rows(),
                       .vocabulary = logits.vocabulary,
                       .plain_greedy = batch_.plain_greedy()},
                      stream);
  if (wanted > 0)
    ops::cuda::logprobs({.logits = logits.data,
                         .row_stride = logits.vocabulary,
                         .wanted = reinterpret_cast<const LogprobsRow*>(device_.data() + l.wanted),
                         .sampled_ids = ids,
                         .logprob = reinterpret_cast<float*>(device_.data() + l.logprob),
                         .top_ids = reinterpret_cast<int32_t*>(device_.data() + l.top_ids),
                         .top_logprobs = reinterpret_cast<float*>(device_.data() + l.top_logprobs),
                         .rows = static_cast<int>(wanted),
                         .top_stride = l.top_stride,
                         .vocabulary = logits.vocabulary},
                        stream);
  SPARROW_CUDA(cudaMemcpyAsync(host_.data() + l.ids, device_.data() + l.ids, l.end - l.ids,
                               cudaMemcpyDeviceToHost, stream));
  SPARROW_CUDA(cudaStreamSynchronize(stream));
  return l;
}

TokenLogprobs DeviceSampler::logprobs_at(const Layout& l, int row, int32_t id) const {
  const auto* logprob = reinterpret_cast<const float*>(host_.data() + l.logprob);
  const auto* top_ids = reinterpret_cast<const int32_t*>(host_.data() + l.top_ids);
  const auto* top_logprobs = reinterpret_cast<const float*>(host_.data() + l.top_logprobs);
  TokenLogprobs result{.token = {id, logprob[row]}, .top = {}};
  const int count = std::min(wanted_[static_cast<size_t>(row)].num_top, l.vocabulary);
  for (int i = 0; i < count; ++i) {
    const size_t at = static_cast<size_t>(row) * l.top_stride + i;
    result.top.push_back({top_ids[at], top_logprobs[at]});
  }
  return result;
}

std::vector<Draw> DeviceSampler::draw(const DeviceLogits& logits, std::span<const DrawRequest> draws,
                                      cudaStream_t stream) {
  if (draws.empty()) return {};
  batch_.clear();
  wanted_.clear();
  for (size_t i = 0; i < draws.size(); ++i) {
    add_row(draws[i]);
    if (draws[i].num_top_logprobs)
      wanted_.push_back({.logits_row = static_cast<int32_t>(draws[i].row),
                         .id = -1,
                         .sampled = static_cast<int32_t>(i),
                         .num_top = *draws[i].num_top_logprobs});
  }
  const Layout l = run(logits, stream);
  const auto* ids = reinterpret_cast<const int32_t*>(host_.data() + l.ids);
  const auto* status = reinterpret_cast<const SampleStatus*>(host_.data() + l.status);
  std::vector<Draw> drawn;
  drawn.reserve(draws.size());
  int next_logprobs = 0;
  for (size_t i = 0; i < draws.size(); ++i) {
    const int logprobs_row = draws[i].num_top_logprobs ? next_logprobs++ : -1;
    const uint64_t position = draws[i].sample.position;
    switch (status[i]) {
      case SampleStatus::kOk:
        drawn.push_back({ids[i], std::nullopt});
        if (logprobs_row >= 0) drawn.back().logprobs = logprobs_at(l, logprobs_row, ids[i]);
        break;
      case SampleStatus::kNotFinite:
        drawn.push_back({logits_not_finite(position), std::nullopt});
        break;
      case SampleStatus::kNothingLeft:
        drawn.push_back({no_id_left(position), std::nullopt});
        break;
    }
  }
  return drawn;
}

std::vector<std::optional<TokenLogprobs>> DeviceSampler::score(const DeviceLogits& logits,
                                                               std::span<const PromptRow> rows,
                                                               cudaStream_t stream) {
  if (rows.empty()) return {};
  batch_.clear();
  wanted_.clear();
  for (const PromptRow& row : rows)
    wanted_.push_back(
        {.logits_row = static_cast<int32_t>(row.row), .id = row.id, .sampled = 0, .num_top = row.num_top});
  const Layout l = run(logits, stream);
  std::vector<std::optional<TokenLogprobs>> scores;
  scores.reserve(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    TokenLogprobs score = logprobs_at(l, static_cast<int>(i), rows[i].id);
    if (std::isnan(score.token.logprob))
      scores.push_back(std::nullopt);
    else
      scores.push_back(std::move(score));
  }
  return scores;
}

}  // namespace sparrow
