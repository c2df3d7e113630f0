// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/device_sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "device/cuda/check.h"

namespace sparrow {

using ops::cuda::LogprobsRow;
using ops::cuda::SampleSpec;
using ops::cuda::SampleStatus;

Result<DeviceSampler> DeviceSampler::create(const DrawLimits& limits) {
  DeviceSampler sampler;
  sampler.buffer_ = DrawBuffer(limits);
  for (Run& run : sampler.runs_) {
    run.host = SPARROW_TRY(PinnedBuffer::allocate(sampler.buffer_.bytes));
    run.device = SPARROW_TRY(DeviceBuffer::allocate(sampler.buffer_.bytes));
  }
  return sampler;
}

SampleSpec DeviceSampler::spec_of(const DrawRequest& draw) {
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
  return {.logits_row = static_cast<int>(draw.row),
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
          .more_banned = nothing ? row.only.first(1) : row.more_banned,
          .mask = row.mask};
}

void DeviceSampler::lay_out(Run& run, const DeviceLogits& logits, size_t draws) const {
  run.vocabulary = logits.vocabulary;
  run.top_stride = 0;
  for (const LogprobsRow& row : run.wanted) run.top_stride = std::max(run.top_stride, row.num_top);
  run.layout = buffer_.lay_out(static_cast<int>(draws), static_cast<int>(run.wanted.size()), run.top_stride);
  SPARROW_CHECK_LE(run.layout.end, run.host.bytes());
  if (!run.wanted.empty())
    std::memcpy(run.host.data() + run.layout.wanted, run.wanted.data(),
                run.wanted.size() * sizeof(LogprobsRow));
}

void DeviceSampler::send_batch(Run& run, const DeviceLogits& logits, int end, cudaStream_t stream) {
  const DrawLayout& l = run.layout;
  const int rows = batch_.rows(), first = end - rows;
  SPARROW_CHECK_LE(batch_.bytes(), buffer_.batch_bytes);
  std::byte *host = run.host.data(), *device = run.device.data();
  batch_.pack(host + l.batch);
  const size_t begin = first > 0 ? l.batch : l.wanted;
  SPARROW_CUDA(cudaMemcpyAsync(device + begin, host + begin, l.batch + batch_.bytes() - begin,
                               cudaMemcpyHostToDevice, stream));
  if (rows > 0)
    ops::cuda::sample({.logits = logits.data,
                       .row_stride = logits.vocabulary,
                       .batch = device + l.batch,
                       .ids = reinterpret_cast<int32_t*>(device + l.ids) + first,
                       .status = reinterpret_cast<SampleStatus*>(device + l.status) + first,
                       .rows = rows,
                       .vocabulary = logits.vocabulary,
                       .plain_greedy = batch_.plain_greedy()},
                      stream);
  batch_.clear();
}

void DeviceSampler::finish_launch(Run& run, const DeviceLogits& logits, cudaStream_t stream) {
  const DrawLayout& l = run.layout;
  std::byte* const device = run.device.data();
  if (!run.wanted.empty())
    ops::cuda::logprobs({.logits = logits.data,
                         .row_stride = logits.vocabulary,
                         .wanted = reinterpret_cast<const LogprobsRow*>(device + l.wanted),
                         .sampled_ids = reinterpret_cast<int32_t*>(device + l.ids),
                         .logprob = reinterpret_cast<float*>(device + l.logprob),
                         .rank = reinterpret_cast<int32_t*>(device + l.rank),
                         .top_ids = reinterpret_cast<int32_t*>(device + l.top_ids),
                         .top_logprobs = reinterpret_cast<float*>(device + l.top_logprobs),
                         .rows = static_cast<int>(run.wanted.size()),
                         .top_stride = run.top_stride,
                         .vocabulary = logits.vocabulary},
                        stream);
  SPARROW_CUDA(cudaMemcpyAsync(run.host.data() + l.ids, device + l.ids, l.end - l.ids, cudaMemcpyDeviceToHost,
                               stream));
  run.done.record(stream);
}

TokenLogprobs DeviceSampler::Run::logprobs_at(int row, int32_t id) const {
  const auto* logprob = reinterpret_cast<const float*>(host.data() + layout.logprob);
  const auto* rank = reinterpret_cast<const int32_t*>(host.data() + layout.rank);
  const auto* top_ids = reinterpret_cast<const int32_t*>(host.data() + layout.top_ids);
  const auto* top_logprobs = reinterpret_cast<const float*>(host.data() + layout.top_logprobs);
  TokenLogprobs result{.token = {id, logprob[row]}, .rank = rank[row], .top = {}};
  const int count = std::min(wanted[static_cast<size_t>(row)].num_top, vocabulary);
  for (int i = 0; i < count; ++i) {
    const size_t at = static_cast<size_t>(row) * top_stride + i;
    result.top.push_back({top_ids[at], top_logprobs[at]});
  }
  return result;
}

void DeviceSampler::start(const DeviceLogits& logits, std::span<const DrawRequest> draws,
                          cudaStream_t stream) {
  SPARROW_CHECK_LT(num_started_ - num_finished_, runs_.size());
  Run& run = runs_[num_started_++ % runs_.size()];
  run.wanted.clear();
  run.positions.clear();
  for (size_t i = 0; i < draws.size(); ++i) {
    run.positions.push_back(draws[i].sample.position);
    if (draws[i].num_top_logprobs)
      run.wanted.push_back({.logits_row = static_cast<int32_t>(draws[i].row),
                            .id = -1,
                            .sampled = static_cast<int32_t>(i),
                            .num_top = *draws[i].num_top_logprobs});
  }
  if (draws.empty()) return;
  lay_out(run, logits, draws.size());
  batch_.clear();
  for (size_t i = 0; i < draws.size(); ++i) {
    const SampleSpec spec = spec_of(draws[i]);
    if (batch_.rows() > 0 && batch_.bytes() + ops::cuda::SampleBatch::bytes_of(spec) > buffer_.batch_bytes) {
      send_batch(run, logits, static_cast<int>(i), stream);
      run.done.record(stream);
      run.done.wait();  // the next ones go to the same place
    }
    batch_.add_row(spec);
  }
  send_batch(run, logits, static_cast<int>(draws.size()), stream);
  finish_launch(run, logits, stream);
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
  run.wanted.clear();
  for (const PromptRow& row : rows)
    run.wanted.push_back(
        {.logits_row = static_cast<int32_t>(row.row), .id = row.id, .sampled = 0, .num_top = row.num_top});
  lay_out(run, logits, 0);
  batch_.clear();
  send_batch(run, logits, 0, stream);
  finish_launch(run, logits, stream);
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
