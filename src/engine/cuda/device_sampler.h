// SPDX-License-Identifier: Apache-2.0
// DeviceSampler: the draws of a step on the GPU, by the rules of Sampler. Ids and probabilities are all that
// comes back. Two steps' draws may be under way, so that a step can start before the last one's ids are
// fetched. Its memory is that of the largest step, taken once. Engine thread only.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "engine/cpu/sampler.h"
#include "engine/memory/draw_layout.h"
#include "ops/cuda/sample/sample.h"
#include "ops/sample_batch.h"

namespace sparrow {

// Rows of logits on the device.
struct DeviceLogits {
  const float* data = nullptr;
  int vocabulary = 0;  // floats of a row
};

class DeviceSampler {
 public:
  DeviceSampler() = default;  // cannot draw
  static Result<DeviceSampler> create(const DrawLimits& limits);

  // Rows of `logits` are those that the requests name. finish() waits for the older of at most two starts.
  void start(const DeviceLogits& logits, std::span<const DrawRequest> draws, cudaStream_t stream);
  std::vector<Draw> finish();
  // Waits for its result; no draw is under way.
  std::vector<std::optional<TokenLogprobs>> score(const DeviceLogits& logits, std::span<const PromptRow> rows,
                                                  cudaStream_t stream);

  size_t device_bytes() const { return kDrawRuns * runs_[0].device.bytes(); }

  // Where the ids of the last start() will be, in the order of its requests, until the next but one.
  const int32_t* ids() const;

 private:
  struct Run {
    PinnedBuffer host;    // both hold what is sent,
    DeviceBuffer device;  // then what comes back
    DrawLayout layout;
    int top_stride = 0, vocabulary = 0;
    std::vector<ops::cuda::LogprobsRow> wanted;
    std::vector<uint64_t> positions;  // of the draws
    Event done;

    TokenLogprobs logprobs_at(int row, int32_t id) const;
  };

  // The draw as the device sees it; refers to seen_ and allowed_.
  ops::cuda::SampleSpec spec_of(const DrawRequest& draw);
  // Places a run of so many draws and of its wanted rows.
  void lay_out(Run& run, const DeviceLogits& logits, size_t draws) const;
  // Sends batch_, which holds the draws before `end`, and draws. The wanted rows travel with the first.
  void send_batch(Run& run, const DeviceLogits& logits, int end, cudaStream_t stream);
  // Scores the wanted rows, and fetches all results.
  void finish_launch(Run& run, const DeviceLogits& logits, cudaStream_t stream);

  DrawBuffer buffer_;
  ops::cuda::SampleBatch batch_;
  std::vector<ops::cuda::SeenId> seen_;
  std::vector<int32_t> allowed_;
  std::array<Run, kDrawRuns> runs_;  // by turns
  unsigned num_started_ = 0, num_finished_ = 0;
};

}  // namespace sparrow
