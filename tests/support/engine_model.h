// SPDX-License-Identifier: Apache-2.0
// A golden checkpoint as the engine's tests use it, and what it generates when nobody else is there.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/model_runner.h"
#include "model/checkpoint.h"

namespace sparrow::test {

class EngineModel {
 public:
  // With `top_k_blocks` instead of the checkpoint's: a small one makes selection matter in short prompts.
  EngineModel(const std::string& golden, int top_k_blocks);

  const ModelConfig& config() const { return config_; }
  const Weights& weights() const { return checkpoint_.weights(); }

  // `length` tokens of an endless text; those of the same number begin alike.
  std::vector<int32_t> text(int number, int length) const;

  // The greedy output of the prompt in a run of its own: one sequence, no engine, the whole prompt at once.
  // Remembers what it has run.
  std::vector<int32_t> greedy_alone(const std::vector<int32_t>& prompt, int num_tokens);

 private:
  Checkpoint checkpoint_;
  ModelConfig config_;
  std::map<std::vector<int32_t>, std::vector<int32_t>> known_;
};

}  // namespace sparrow::test
