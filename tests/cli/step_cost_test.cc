// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/step_cost.h"

#include <gtest/gtest.h>

#include "cli/bench/step_picture.h"
#include "model/ledger.h"
#include "support/m3_config.h"

namespace sparrow::cli {
namespace {

class StepCostTest : public testing::Test {
 protected:
  ModelConfig config = parse_config(test::m3_config_json(), "").value();
  const std::vector<int> all_hit = std::vector<int>(config.num_layers, config.num_experts);

  PartCost cost(const char* part, const StepWork& work, int ranks = 8) const {
    for (const PartCost& cost : step_cost(config, {.tp = ranks}, work))
      if (cost.part == part) return cost;
    ADD_FAILURE() << part;
    return {};
  }
};

// A step of one token that hits every expert reads every weight once; the ledger counts them from the list of
// tensors.
TEST_F(StepCostTest, OneTokenThatHitsAllExpertsReadsAllWeights) {
  for (const QuantFormat quant : {QuantFormat::kNone, QuantFormat::kMxfp8, QuantFormat::kMxfp4}) {
    config.quant = quant;
    for (const int ranks : {1, 4, 8}) {
      const Ledger ledger = make_ledger(config, {.tp = ranks}, DType::kBF16, DType::kBF16, false);
      double weights = 0;
      for (const char* part : {"q/k/v product", "output product", "router", "experts", "vocabulary"})
        weights += cost(part, {.experts_hit = all_hit}, ranks).bytes;
      const double embedding = 2.0 * config.vocab_size * config.hidden_size / ranks;  // one row of it is read
      EXPECT_NEAR(weights / (static_cast<double>(ledger.weight_bytes) - embedding), 1, 2e-3) << ranks;
    }
  }
}

TEST_F(StepCostTest, DecodeReadsTheIndexOfTheWholeContextAndSixteenBlocks) {
  const StepWork work{.requests = 64, .queries = 1, .context = 131072, .experts_hit = all_hit};
  EXPECT_NEAR(cost("index", work).bytes, 57.0 * 64 * 131072 * 256, 1e7);
  EXPECT_NEAR(cost("sparse attention", work).bytes, 57.0 * 64 * 2048 * 512, 2e7);
  EXPECT_NEAR(cost("dense attention", work).bytes, 3.0 * 64 * 131072 * 512, 2e6);
}

TEST_F(StepCostTest, ShortContextsAreReadWholeAndOnce) {
  const StepWork work{.requests = 1, .queries = 1000, .context = 1000, .experts_hit = all_hit};
  const double queries = 57.0 * 2 * 1000 * 1024 * 2;
  EXPECT_NEAR(cost("sparse attention", work).bytes, 57.0 * 1000 * 512 + queries, 1);
  // Token i sees i + 1 keys.
  EXPECT_NEAR(cost("sparse attention", work).flops, 57.0 * 4 * 1024 * (1000.0 * 1001 / 2), 1);
}

// What it attends to comes on top of the others', and every weight is still read once.
TEST_F(StepCostTest, APromptBesideDecodesIsCountedWithThem) {
  const StepWork decodes{.requests = 64, .queries = 1, .context = 32768, .experts_hit = all_hit};
  const StepWork prompt{.requests = 1, .queries = 500, .context = 9000, .experts_hit = all_hit};
  StepWork both = decodes;
  both.prompt_queries = prompt.queries;
  both.prompt_context = prompt.context;
  EXPECT_EQ(both.tokens(), 564);
  for (const char* part : {"index", "sparse attention", "dense attention", "norms"}) {
    EXPECT_NEAR(cost(part, both).bytes / (cost(part, decodes).bytes + cost(part, prompt).bytes), 1, 1e-9)
        << part;
    EXPECT_NEAR(cost(part, both).flops, cost(part, decodes).flops + cost(part, prompt).flops, 1) << part;
  }
  for (const char* part : {"q/k/v product", "experts", "vocabulary"})
    EXPECT_LT(cost(part, both).bytes, 0.9 * (cost(part, decodes).bytes + cost(part, prompt).bytes)) << part;
  EXPECT_NEAR(cost("vocabulary", both).flops, 65 * cost("vocabulary", prompt).flops, 1);
}

TEST_F(StepCostTest, EachLaneOfAnFp8CacheHalvesItsOwnBytes) {
  const StepWork bf16{.requests = 8, .queries = 1, .context = 32768, .experts_hit = all_hit};
  StepWork fp8 = bf16;
  fp8.kv_dtype = DType::kF8E4M3;
  EXPECT_NEAR(cost("dense attention", fp8).bytes / cost("dense attention", bf16).bytes, 0.5, 1e-3);
  EXPECT_EQ(cost("index", fp8).bytes, cost("index", bf16).bytes);
  fp8.index_dtype = DType::kF8E4M3;
  EXPECT_NEAR(cost("index", fp8).bytes / cost("index", bf16).bytes, 0.5, 1e-3);
}

TEST_F(StepCostTest, PrefillOf8KTakesAsManyOperationsAsTheActiveParameters) {
  // 23 G active parameters, of which the embedding does no work and attention does some without any.
  double flops = 0;
  for (const PartCost& part : step_cost(
           config, {.tp = 8}, {.requests = 1, .queries = 8192, .context = 8192, .experts_hit = all_hit}))
    flops += part.flops;
  EXPECT_NEAR(flops / 8192 / 2 * 8 / 1e9, 23, 5);
}

TEST(StepPicture, HasABoxForEverySpanAndARowForEveryLayer) {
  StepTimes times;
  times.timeline = {{"norms", 0, 0, 2}, {"experts", 0, 2, 10}, {"norms", 1, 10, 12}, {"experts", 1, 12, 21}};
  const std::string svg = step_picture(times);
  const auto count = [&](const std::string& what) {
    int found = 0;
    for (size_t at = svg.find(what); at != std::string::npos; at = svg.find(what, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("<title>"), 4);
  EXPECT_EQ(count("experts, layer 1: 9.0 us"), 1);
  EXPECT_EQ(count("text-anchor=\"end\""), 2);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
}

}  // namespace
}  // namespace sparrow::cli
