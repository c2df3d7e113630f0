// SPDX-License-Identifier: Apache-2.0
#include "support/engine/engine_model.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <span>

#include "engine/cpu/sampler.h"
#include "model/vision/segments.h"
#include "support/golden.h"
#include "support/variant.h"

namespace sparrow::test {

EngineModel::EngineModel(const std::string& golden, int top_k_blocks, Device device, const GpuOptions& gpu)
    : device_(device),
      gpu_(gpu),
      checkpoint_(Checkpoint::open(golden_dir() / golden).value()),
      config_(checkpoint_.config()) {
  config_.top_k_blocks = top_k_blocks;
}

std::vector<int32_t> EngineModel::text(int number, int length) const {
  std::mt19937_64 random(static_cast<uint64_t>(number) + 1);
  std::vector<int32_t> ids(length);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(config_.vocab_size));
  return ids;
}

bool EngineModel::Prompt::operator<(const Prompt& other) const {
  if (ids != other.ids) return ids < other.ids;
  return std::ranges::lexicographical_compare(media, other.media, {}, &RequestMedium::digest,
                                              &RequestMedium::digest);
}

void EngineModel::add_picture(Prompt& prompt, int number) {
  static constexpr PatchGrid kGrids[kNumPictures] = {{1, 4, 4},   {1, 4, 4},   {1, 10, 26},
                                                     {1, 10, 26}, {1, 16, 40}, {9, 4, 8}};
  const VisionConfig& vision = *config_.vision;
  RequestMedium medium{.grid = kGrids[number]};
  medium.digest[0] = static_cast<uint8_t>(number + 1);
  PatchRows& patches = patches_[number];
  if (!patches) {
    std::mt19937 random(static_cast<uint32_t>(number) + 1);
    std::normal_distribution<float> normal;
    auto rows = std::make_shared<std::vector<float>>(
        static_cast<size_t>(medium.grid.patches() * patch_numbers(vision)));
    for (float& value : *rows) value = normal(random);
    patches = rows;
  }
  medium.patches = patches;
  const int64_t frame = tokens_of(vision, medium.grid) / medium.grid.t;
  for (int t = 0; t < medium.grid.t; ++t) {
    if (t > 0) prompt.ids.push_back(t);
    const auto begin = static_cast<int64_t>(prompt.ids.size());
    medium.runs.push_back({begin, begin + frame});
    prompt.ids.resize(static_cast<size_t>(begin + frame),
                      medium.grid.t > 1 ? vision.video_token_id : vision.image_token_id);
  }
  prompt.media.push_back(std::move(medium));
}

const EngineModel::Greedy& EngineModel::run_alone(const Prompt& prompt, int num_tokens) {
  if (!runner_)
    runner_ =
        std::make_unique<SequenceRunner>(create_runner(config_, weights(),
                                                       {.device = device_,
                                                        .cache_tokens = kMaxTokens,
                                                        .cpu = {.threads = test_threads(), .isa = test_isa()},
                                                        .gpu = gpu_,
                                                        .max_model_tokens = kMaxTokens,
                                                        .max_step_tokens = kMaxTokens,
                                                        .max_step_sequences = 1})
                                             .value());
  Greedy& output = known_[prompt];
  if (static_cast<int>(output.ids.size()) >= num_tokens) return output;
  output = {};
  Sequence sequence = runner_->new_sequence();
  sequence.ids = prompt.ids;
  if (!prompt.media.empty()) sequence.segments = media_of(prompt.media, 0, config_.vision, "").segments;
  while (static_cast<int>(output.ids.size()) < num_tokens) {
    const Tensor logits = runner_->prefill(sequence, kMaxTokens).value();
    const std::span row(logits.as<float>(), static_cast<size_t>(logits.cols()));
    const int32_t best = argmax(row).value();
    float second = -INFINITY;
    for (size_t id = 0; id < row.size(); ++id)
      if (static_cast<int32_t>(id) != best) second = std::max(second, row[id]);
    output.ids.push_back(best);
    output.margins.push_back((row[best] - second) / std::fabs(row[best]));
    sequence.ids.push_back(best);
  }
  return output;
}

std::vector<int32_t> EngineModel::greedy_alone(const std::vector<int32_t>& prompt, int num_tokens) {
  const std::vector<int32_t>& ids = run_alone({prompt, {}}, num_tokens).ids;
  return {ids.begin(), ids.begin() + num_tokens};
}

}  // namespace sparrow::test
