// SPDX-License-Identifier: Apache-2.0
// What a CudaRunner is made of, for the files that implement it.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "device/cuda/device_info.h"
#include "device/cuda/stream.h"
#include "engine/cuda/device_sampler.h"
#include "engine/cuda/step_upload.h"
#include "engine/cuda_runner.h"
#include "kv/cuda/cuda_kv_cache.h"
#include "model/cuda/cuda_text_model.h"
#include "model/cuda/device_weights.h"

namespace sparrow {

struct CudaRunner::State {
  State(const ModelConfig& config, const RunnerOptions& options, DeviceInfo device)
      : config(config), options(options), device(std::move(device)) {}

  Result<int64_t> num_blocks(const KvCacheShape& one_block) const;
  // Rounds a decode step up to a shape that has a graph.
  void round_up(StepShape& shape) const;
  // Its graph, captured when it is first needed.
  const Graph& graph_of(const StepShape& shape);
  // Rows of logits that the window in the buffer starts at; computes another where `row` is not in it.
  int64_t window_of(int64_t row);
  // Calls `use` with the rows in pieces that lie in one window, as rows of the buffer.
  template <typename Row, typename Use>
  void for_each_window(std::span<const Row> rows, const Use& use);
  int64_t logits_row(int64_t row) const {
    return replayed ? wanted_rows[static_cast<size_t>(row)] : row - first_row;
  }
  DeviceLogits logits() const { return {model->logits(), weights.vocab_rows}; }
  const int32_t* drawn_ids(const Batch& batch) const {
    return batch.drawn_by.empty() ? nullptr : sampler.ids();
  }

  const ModelConfig& config;
  const RunnerOptions options;
  const DeviceInfo device;
  Stream stream;
  DeviceWeights weights;
  std::unique_ptr<CudaTextModel> model;
  std::vector<float> kv_scales;  // of an fp8 cache, where the checkpoint has them
  std::optional<CudaKvCache> cache;
  std::optional<StepUpload> upload;
  DeviceSampler sampler;
  std::deque<std::vector<Draw>> early_draws;    // by step: what was drawn before its last window
  std::map<std::pair<int, int>, Graph> graphs;  // by decodes and table columns
  int max_columns = 0, max_logits = 0;

  // The last step.
  std::vector<int32_t> wanted_rows;  // of the batch
  bool replayed = false;             // its logits have a row for every row of the batch
  int64_t first_row = 0;             // of the wanted ones whose logits stand in the buffer
  std::vector<float> host_logits;
};

}  // namespace sparrow
