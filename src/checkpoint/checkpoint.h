// SPDX-License-Identifier: Apache-2.0
// Checkpoint: a folder of safetensors files, mapped and used in place. Opening one proves that every tensor
// is there with the right shape and type, and that nothing is left over. Or random weights in their stead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "base/result.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weights.h"
#include "config/config.h"

namespace sparrow {

struct CheckpointOptions {
  // Bring the pages into memory now rather than at first use. Skipped where the files are larger than the
  // memory.
  bool prefault = true;
  // Of several processes that open it together on one machine, each brings in its share of the pages: what
  // one has read the page cache has for all.
  int reader = 0, num_readers = 1;
  // Look for scales that are no numbers. A GPU does so when it takes them in: no page is read twice.
  bool check_scales = true;
  // Without it the vision tower's tensors must be there all the same, but nobody reads them.
  bool vision = true;
  ProgressFn progress;    // bytes read, bytes in all
  std::string overrides;  // JSON to lay over config.json; empty: none
};

// What config.json says, and what tensors are called by the files beside it, if there are any: for whoever
// reads no weights.
Result<ModelConfig> model_config(const std::filesystem::path& path, std::string_view overrides = {});

class Checkpoint {
 public:
  static Result<Checkpoint> open(const std::filesystem::path& dir, const CheckpointOptions& options = {});

  // Random weights in memory, of the shapes that config.json says; no file of weights is read. The same seed
  // gives the bytes that a synthetic checkpoint of this configuration has.
  static Result<Checkpoint> random(const std::filesystem::path& dir, uint64_t seed,
                                   const CheckpointOptions& options = {});

  // The configuration alone, for whoever makes weights of its own.
  static Result<Checkpoint> without_weights(const std::filesystem::path& dir,
                                            const CheckpointOptions& options = {});

  const ModelConfig& config() const { return config_; }
  // Valid as long as the checkpoint; moving it keeps them valid.
  const Weights& weights() const { return weights_; }
  // Where they lie; empty for random weights.
  const std::vector<SafetensorsFile>& files() const { return files_; }
  // Bytes of all tensors that belong to the model.
  size_t weight_bytes() const { return weight_bytes_; }
  size_t num_tensors() const { return num_tensors_; }

 private:
  Checkpoint() = default;

  ModelConfig config_;
  std::vector<SafetensorsFile> files_;
  std::vector<std::unique_ptr<std::byte[]>>
      copies_;  // tensors that are in no file, or not where they can be used
  Weights weights_;
  size_t weight_bytes_ = 0;
  size_t num_tensors_ = 0;
};

}  // namespace sparrow
