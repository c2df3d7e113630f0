// SPDX-License-Identifier: Apache-2.0
// The engine on a GPU: the random scenarios of the CPU's equality test. Batch-invariant kernels must pass it
// as it is. With the fast ones, steps of other sizes run other kernels, whose sums round differently, and a
// near-tie between experts or blocks falls the other way now and then: of the sure ids nearly all are equal.
#include <gtest/gtest.h>

#include "engine/ranks/rank_group.h"
#include "support/engine/equality_scenario.h"

namespace sparrow {
namespace {

using test::Coverage;
using test::EngineModel;
using test::EqualityScenario;

constexpr int kTopKBlocks = 2;
constexpr int kSeedsOfPart = 12;
constexpr double kNearlyAll = 0.97;

class CudaEngineEquality : public testing::TestWithParam<int> {};

void expect_exact(EngineModel& model, int part) {
  Coverage coverage;
  for (int i = 0; i < kSeedsOfPart; ++i) {
    SCOPED_TRACE(testing::Message() << "seed " << part * kSeedsOfPart + i);
    EqualityScenario(model, part * kSeedsOfPart + i).run(coverage);
    ASSERT_EQ(coverage.mismatches, 0) << "of " << coverage.outputs;
    if (testing::Test::HasFailure()) return;
  }
  coverage.print(kSeedsOfPart);
  for (const int64_t count : {coverage.chunked, coverage.hits, coverage.forked}) EXPECT_GT(count, 0);
}

TEST_P(CudaEngineEquality, InvariantKernelsAreExact) {
  EngineModel model(GetParam() % 2 ? "bf16" : "yarn", kTopKBlocks, Device::kCuda, {.batch_invariant = true});
  expect_exact(model, GetParam());
}

// Blocks whose lanes have other sizes are shared, copied and computed again like any others.
TEST(CudaEngine, InvariantKernelsAreExactOnFp8Caches) {
  for (const DType kv_dtype : {DType::kBF16, DType::kF8E4M3}) {
    EngineModel model("bf16", kTopKBlocks, Device::kCuda,
                      {.kv_dtype = kv_dtype, .index_dtype = DType::kF8E4M3, .batch_invariant = true});
    expect_exact(model, /*part=*/0);
  }
}

TEST_P(CudaEngineEquality, FastKernelsAgreeOnSureIds) {
  Coverage coverage;
  EngineModel model(GetParam() % 2 ? "bf16" : "yarn", kTopKBlocks, Device::kCuda);
  for (int i = 0; i < kSeedsOfPart; ++i) {
    SCOPED_TRACE(testing::Message() << "seed " << GetParam() * kSeedsOfPart + i);
    EqualityScenario(model, GetParam() * kSeedsOfPart + i).run(coverage);
    if (testing::Test::HasFailure()) return;
  }
  coverage.print(kSeedsOfPart);
  std::printf("%ld of %ld sure ids differ\n", coverage.sure_mismatches, coverage.sure_ids);
  EXPECT_GT(coverage.sure_ids, 100);
  EXPECT_LE(coverage.sure_mismatches, (1 - kNearlyAll) * coverage.sure_ids);
  for (const int64_t count : {coverage.chunked, coverage.hits, coverage.forked}) EXPECT_GT(count, 0);
}

INSTANTIATE_TEST_SUITE_P(Parts, CudaEngineEquality, testing::Range(0, 4));

// What a run of one greedy request says.
struct Answer {
  std::vector<int32_t> ids;
  int64_t cached_tokens = 0;
};

Answer ask(EngineCore& core, RequestId id, const std::vector<int32_t>& prompt) {
  Request request;
  request.prompts = {prompt};
  request.max_tokens = 8;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  const auto channel = std::make_shared<TokenChannel>(1, 16, [] {});
  TokenStream stream(channel);
  core.add(id, request, channel, {});
  Answer answer;
  for (int step = 0; !stream.done() && step < 100; ++step) {
    core.step({});
    core.deliver();
    while (const auto event = stream.try_next()) {
      if (event->id) answer.ids.push_back(*event->id);
      answer.cached_tokens = event->cached_tokens;
    }
  }
  return answer;
}

// That the comparison can fail: cached blocks that hold something else give other ids.
TEST(CudaEngine, CachedBlocksAreReadAndTheirLossShows) {
  EngineModel model("bf16", kTopKBlocks, Device::kCuda);
  EngineOptions options{.device = Device::kCuda, .cache_tokens = 2048, .max_step_tokens = 512};
  const auto core = EngineCore::create(model.config(), model.weights(), options).value();
  const std::vector<int32_t> prompt = model.text(0, 400);
  const Answer cold = ask(*core, 1, prompt), cached = ask(*core, 2, prompt);
  EXPECT_EQ(cold.cached_tokens, 0);
  EXPECT_GE(cached.cached_tokens, 384);
  EXPECT_EQ(cached.ids.front(), cold.ids.front());
  dynamic_cast<RankGroup&>(core->runner()).fill_cache(5);
  const Answer spoiled = ask(*core, 3, prompt);
  EXPECT_GE(spoiled.cached_tokens, 384);
  EXPECT_NE(spoiled.ids, cold.ids);
}

TEST(CudaEngine, AGpuThatIsNotThereIsRefusedByItsNumber) {
  EngineModel model("bf16", kTopKBlocks, Device::kCuda);
  const EngineOptions options{.device = Device::kCuda, .gpu = {.ordinal = 99}};
  const auto core = EngineCore::create(model.config(), model.weights(), options);
  ASSERT_FALSE(core.ok());
  EXPECT_NE(core.error().message.find("GPU 99 does not exist"), std::string::npos) << core.error().message;
  EXPECT_FALSE(has_usable_gpu(99));
}

}  // namespace
}  // namespace sparrow
