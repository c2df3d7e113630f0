// SPDX-License-Identifier: Apache-2.0
// A golden checkpoint as the engine's tests use it, and what it generates when nobody else is there.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "engine/media/request_media.h"
#include "engine/sequence_runner.h"

namespace sparrow::test {

class EngineModel {
 public:
  // With `top_k_blocks` instead of the checkpoint's: a small one makes selection matter in short prompts.
  EngineModel(const std::string& golden, int top_k_blocks, Device device = Device::kCpu,
              const GpuOptions& gpu = {});

  const ModelConfig& config() const { return config_; }
  const Weights& weights() const { return checkpoint_.weights(); }
  Device device() const { return device_; }
  const GpuOptions& gpu() const { return gpu_; }

  // `length` tokens of an endless text; those of the same number begin alike.
  std::vector<int32_t> text(int number, int length) const;

  // A prompt with its media, built from left to right. Pictures are of random numbers: 0 and 1 have one
  // shape, 2 and 3 another, 4 is larger than a block, 5 is a clip of three segments with text between its
  // frames.
  struct Prompt {
    std::vector<int32_t> ids;
    std::vector<RequestMedium> media;

    bool operator<(const Prompt& other) const;
  };
  static constexpr int kNumPictures = 6;
  void add_picture(Prompt& prompt, int number);

  struct Greedy {
    std::vector<int32_t> ids;
    std::vector<float> margins;  // by which each one's logit leads the second best, as a part of it
  };
  // The greedy output of the prompt in a run of its own: one sequence, no engine, the whole prompt at once.
  // At least `num_tokens`; remembers what it has run.
  const Greedy& run_alone(const Prompt& prompt, int num_tokens);
  std::vector<int32_t> greedy_alone(const std::vector<int32_t>& prompt, int num_tokens);

 private:
  static constexpr int kMaxTokens = 4096;  // of a prompt and its output

  const Device device_;
  const GpuOptions gpu_;
  Checkpoint checkpoint_;
  ModelConfig config_;
  std::unique_ptr<SequenceRunner> runner_;
  std::map<Prompt, Greedy> known_;
  std::map<int, PatchRows> patches_;
};

}  // namespace sparrow::test
