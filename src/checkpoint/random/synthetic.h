// SPDX-License-Identifier: Apache-2.0
// Random checkpoints in the released layout, for tests, demonstrations and measurements where the real one
// does not fit. The same preset, seed and format give the same bytes on every machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/created_files.h"
#include "base/matrix_format.h"
#include "base/progress.h"
#include "base/result.h"

namespace sparrow {

struct ModelConfig;

struct SyntheticOptions {
  std::string preset = "tiny";  // as synthetic_config() takes it
  uint64_t seed = 0;
  std::filesystem::path dir;
  // kBF16 or kF32 for all weights, or kMxfp8 or kMxfp4 for those that published checkpoints have so.
  MatrixFormat format = MatrixFormat::kBF16;
  // Adds what else a checkpoint of this model has, such as a tokenizer: called before config.json is written.
  std::function<Status(const ModelConfig&, CreatedFiles&)> write_beside = {};
};

struct SyntheticPreset {
  std::string_view name;
  std::string_view summary;
  bool is_writable = true;  // false: its size is of interest, its 854 GB of random numbers are not
};
std::vector<SyntheticPreset> synthetic_presets();

struct SyntheticConfig {
  std::string config_json, generation_config_json;
};
// "m3", or "m3-mxfp8" and "m3-mxfp4" for the quantised releases of it, "m3-mxfp4-mxfp8" for what is between
// them; likewise with every other preset. A format other than BF16 takes the name of a preset alone.
Result<SyntheticConfig> synthetic_config(std::string_view name, MatrixFormat format = MatrixFormat::kBF16);

// Creates the folder if need be. A folder that already holds config.json is left alone, and is an error.
// After an error nothing is left of what was created.
Status write_synthetic_checkpoint(const SyntheticOptions& options, const ProgressFn& progress = {});

}  // namespace sparrow
