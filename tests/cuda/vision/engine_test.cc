// SPDX-License-Identifier: Apache-2.0
// Prompts with pictures on a GPU: the random scenarios of the CPU's equality test, the CPU's own ids, and
// pictures that two ranks share out among them.
#include <gtest/gtest.h>

#include "engine/ranks/rank_group.h"
#include "engine/sequence_runner.h"
#include "support/engine/equality_scenario.h"
#include "support/golden.h"

namespace sparrow {
namespace {

using test::Coverage;
using test::EngineModel;
using test::EqualityScenario;

constexpr int kTopKBlocks = 2, kNumSeeds = 12;

TEST(CudaMedia, InvariantKernelsAreExact) {
  Coverage coverage;
  EngineModel model("vision/model", kTopKBlocks, Device::kCuda, {.batch_invariant = true});
  for (uint64_t seed = 0; seed < kNumSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    EqualityScenario(model, seed, {}, /*pictures=*/true).run(coverage);
    ASSERT_EQ(coverage.mismatches, 0) << "an output differs from the one of its prompt alone";
    if (testing::Test::HasFailure()) return;
  }
  coverage.print(kNumSeeds);
  EXPECT_GT(coverage.encoded, kNumSeeds);
  for (const int64_t count : {coverage.chunked, coverage.hits}) EXPECT_GT(count, 0);
}

// Text, a picture, text.
EngineModel::Prompt prompt_with(EngineModel& model, int number) {
  EngineModel::Prompt prompt{model.text(number, 20), {}};
  model.add_picture(prompt, number);
  prompt.ids.push_back(7);
  return prompt;
}

// Where the CPU, in f32, is sure: its best two logits differ by more than 2% of the best.
TEST(CudaMedia, SureIdsAreTheCpus) {
  constexpr int kTokens = 8;
  EngineModel cpu("vision/model", kTopKBlocks), gpu("vision/model", kTopKBlocks, Device::kCuda);
  int sure = 0;
  for (int number = 0; number < EngineModel::kNumPictures; ++number) {
    const EngineModel::Greedy want = cpu.run_alone(prompt_with(cpu, number), kTokens);
    const EngineModel::Greedy got = gpu.run_alone(prompt_with(gpu, number), kTokens);
    for (size_t i = 0; i < kTokens && want.margins[i] > 0.02f; ++i, ++sure)
      EXPECT_EQ(got.ids[i], want.ids[i]) << "picture " << number << ", token " << i;
  }
  std::printf("%d sure ids\n", sure);
  EXPECT_GE(sure, EngineModel::kNumPictures);
}

std::vector<float> logits_of(EngineModel& model, int ranks, int number) {
  const RankOptions options{.cache_tokens = 1024,
                            .max_context = 1024,
                            .max_step_tokens = 1024,
                            .max_step_sequences = 4,
                            .grid = {.tp = ranks},
                            .gpu = {.batch_invariant = true, .feature_tokens = 512}};
  SequenceRunner runner(ranks == 1 ? create_rank_group(model.config(), model.weights(), options).value()
                                   : create_ranks_in_turn(model.config(), model.weights(), options).value());
  Sequence sequence = runner.new_sequence();
  EngineModel::Prompt prompt = prompt_with(model, number);
  model.add_picture(prompt, 0);  // another one, which the second rank encodes
  prompt.ids.push_back(9);
  sequence.ids = prompt.ids;
  sequence.segments = media_of(prompt.media, 0, model.config().vision, "").segments;
  const Tensor logits = runner.prefill(sequence, 1024).value();
  return {logits.as<float>(), logits.as<float>() + logits.numel()};
}

TEST(CudaMedia, RanksSharePicturesOut) {
  EngineModel model("vision/model", kTopKBlocks);
  for (const int number : {0, 2, 5}) {
    const std::vector<float> one = logits_of(model, 1, number), two = logits_of(model, 2, number);
    EXPECT_LT(test::relative_error(two, one), 0.05) << number;
    EXPECT_GT(test::relative_error(logits_of(model, 1, (number + 1) % 6), one), 0.2) << number;
  }
}

}  // namespace
}  // namespace sparrow
