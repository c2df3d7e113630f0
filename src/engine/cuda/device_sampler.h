// SPDX-License-Identifier: Apache-2.0
// DeviceSampler: the draws of a step on the GPU, by the rules of Sampler. Ids and probabilities are all that
// comes back. Engine thread only.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "device/cuda/memory.h"
#include "engine/sampler.h"
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
  // Rows of `logits` are those that the requests name. Both wait for their results.
  std::vector<Draw> draw(const DeviceLogits& logits, std::span<const DrawRequest> draws, cudaStream_t stream);
  std::vector<std::optional<TokenLogprobs>> score(const DeviceLogits& logits, std::span<const PromptRow> rows,
                                                  cudaStream_t stream);

 private:
  struct Layout;

  void add_row(const DrawRequest& draw);
  // Sends batch_ and wanted_, runs both kernels, and fetches what they wrote.
  Layout run(const DeviceLogits& logits, cudaStream_t stream);
  TokenLogprobs logprobs_at(const Layout& layout, int row, int32_t id) const;

  ops::cuda::SampleBatch batch_;
  std::vector<ops::cuda::LogprobsRow> wanted_;
  std::vector<ops::cuda::SeenId> seen_;
  std::vector<int32_t> allowed_;
  PinnedBuffer host_;    // both hold what is sent,
  DeviceBuffer device_;  // then what comes back
};

}  // namespace sparrow
