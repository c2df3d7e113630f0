// SPDX-License-Identifier: Apache-2.0
// DeviceSampler: the draws of a step on the GPU, by the rules of Sampler. Ids and probabilities are all that
// comes back. Two steps' draws may be under way, so that a step can start before the last one's ids are
// fetched. Engine thread only.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "engine/cpu/sampler.h"
#include "ops/cuda/sample/sample.h"
#include "ops/cuda/sample/sample_batch.h"

namespace sparrow {

// Rows of logits on the device.
struct DeviceLogits {
  const float* data = nullptr;
  int vocabulary = 0;  // floats of a row
};

class DeviceSampler {
 public:
  // Rows of `logits` are those that the requests name. finish() waits for the older of at most two starts.
  void start(const DeviceLogits& logits, std::span<const DrawRequest> draws, cudaStream_t stream);
  std::vector<Draw> finish();
  // Waits for its result; no draw is under way.
  std::vector<std::optional<TokenLogprobs>> score(const DeviceLogits& logits, std::span<const PromptRow> rows,
                                                  cudaStream_t stream);

  // Where the ids of the last start() will be, in the order of its requests, until the next but one.
  const int32_t* ids() const;

 private:
  // Where things are in a run's two buffers.
  struct Layout {
    size_t batch, wanted;  // sent
    size_t ids, status, logprob, rank, top_ids, top_logprobs, end;
    int top_stride, vocabulary;
  };
  struct Run {
    PinnedBuffer host;    // both hold what is sent,
    DeviceBuffer device;  // then what comes back
    Layout layout{};
    std::vector<ops::cuda::LogprobsRow> wanted;
    std::vector<uint64_t> positions;  // of the draws
    Event done;

    TokenLogprobs logprobs_at(int row, int32_t id) const;
  };

  void add_row(const DrawRequest& draw);
  // Sends batch_ and the run's wanted rows, runs both kernels, and fetches what they wrote.
  void launch(Run& run, const DeviceLogits& logits, cudaStream_t stream);

  ops::cuda::SampleBatch batch_;
  std::vector<ops::cuda::SeenId> seen_;
  std::vector<int32_t> allowed_;
  std::array<Run, 2> runs_;  // by turns
  unsigned num_started_ = 0, num_finished_ = 0;
};

}  // namespace sparrow
