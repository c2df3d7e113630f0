// SPDX-License-Identifier: Apache-2.0
// `sparrow doctor`: what is wrong with this machine, this build or a model, and what to do about it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/config.h"

namespace sparrow::cli {

struct DoctorOptions {
  std::filesystem::path model;  // a folder; empty: the machine only
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string hf_overrides;
  bool json = false;
  std::filesystem::path root = "/";  // where proc, sys and dev are: tests have their own
};

struct Finding {
  enum class Level : uint8_t { kOk, kWarn, kFail };
  Level level = Level::kOk;
  std::string topic;
  std::string text;
  std::string next = {};  // what to do about it; empty: nothing
};

std::vector<Finding> examine(const DoctorOptions& options);

// The exit code: 1 if something fails.
Result<int> run_doctor(const DoctorOptions& options);

// The parts of it.
std::vector<Finding> examine_machine(const std::filesystem::path& root);
std::vector<Finding> examine_gpus(const std::filesystem::path& root);
Finding examine_nccl(const char* library = "libnccl.so.2");
Finding examine_port(const std::string& host, int port);
std::vector<Finding> examine_model(const DoctorOptions& options);
// How so many GPUs, each of that size, could share the model.
Finding examine_grids(const ModelConfig& config, int gpus, int64_t gpu_bytes);

// GPUs of this machine, and the memory of the smallest.
struct GpuCount {
  int gpus = 0;
  int64_t bytes = 0;
};
GpuCount count_gpus();

}  // namespace sparrow::cli
