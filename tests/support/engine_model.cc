// SPDX-License-Identifier: Apache-2.0
#include "support/engine_model.h"

#include <random>

#include "engine/sampler.h"
#include "support/golden.h"

namespace sparrow::test {

EngineModel::EngineModel(const std::string& golden, int top_k_blocks)
    : checkpoint_(Checkpoint::open(golden_dir() / golden).value()), config_(checkpoint_.config()) {
  config_.top_k_blocks = top_k_blocks;
}

std::vector<int32_t> EngineModel::text(int number, int length) const {
  std::mt19937_64 random(static_cast<uint64_t>(number) + 1);
  std::vector<int32_t> ids(length);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(config_.vocab_size));
  return ids;
}

std::vector<int32_t> EngineModel::greedy_alone(const std::vector<int32_t>& prompt, int num_tokens) {
  std::vector<int32_t>& output = known_[prompt];
  if (static_cast<int>(output.size()) < num_tokens) {
    const auto runner = ModelRunner::create(
        config_, weights(), {.cache_tokens = static_cast<int64_t>(prompt.size()) + num_tokens, .threads = 1});
    Sequence sequence = runner.value()->new_sequence();
    sequence.ids = prompt;
    output.clear();
    while (static_cast<int>(output.size()) < num_tokens) {
      const Tensor logits = runner.value()->prefill(sequence, 1 << 20).value();
      output.push_back(argmax({logits.as<float>(), static_cast<size_t>(logits.cols())}).value());
      sequence.ids.push_back(output.back());
    }
  }
  return {output.begin(), output.begin() + num_tokens};
}

}  // namespace sparrow::test
