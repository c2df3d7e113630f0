// SPDX-License-Identifier: Apache-2.0
#include "engine/sim/cost_model.h"

#include <gtest/gtest.h>

namespace sparrow {
namespace {

constexpr const char* kModel = R"({"name": "test", "gpus": 8, "groups": 2, "cache_tokens": 1000,
    "rows": {"at": [1, 2, 10], "us": [100, 110, 190]},
    "us_of": {"context": 0.5, "sequences": 2, "pairs": 0.25, "logit_rows": 1},
    "exchanges": 3, "exchange": {"at": [1], "us": [7]}, "host_us": 50})";

TEST(StepShape, CountsWhatRowsSee) {
  StepShape shape;
  shape.add(1, 3000, 1);  // a decode
  EXPECT_EQ(shape.rows, 1);
  EXPECT_EQ(shape.sequences, 1);
  EXPECT_EQ(shape.context, 3000);
  EXPECT_EQ(shape.selected, 2048);
  EXPECT_EQ(shape.pairs, 0);
  shape.add(3, 5, 0);  // a prompt's tokens at positions 2 to 4
  EXPECT_EQ(shape.rows, 4);
  EXPECT_EQ(shape.prompts, 1);
  EXPECT_EQ(shape.prompt_context, 5);
  EXPECT_EQ(shape.pairs, 3 + 4 + 5);
  EXPECT_EQ(shape.selected_pairs, 3 + 4 + 5);
  EXPECT_EQ(shape.logit_rows, 1);
  // By the definition, one row after the other.
  StepShape far;
  far.add(100, 2100, 1);
  double selected = 0;
  for (int64_t sees = 2001; sees <= 2100; ++sees)
    selected += static_cast<double>(std::min<int64_t>(sees, 2048));
  EXPECT_EQ(far.selected_pairs, selected);
}

TEST(Curve, IsStraightBetweenItsPointsAndBeyondTheLast) {
  const Curve curve{.at = {1, 2, 10}, .us = {100, 110, 190}};
  EXPECT_EQ(curve(0), 100);
  EXPECT_EQ(curve(1), 100);
  EXPECT_EQ(curve(1.5), 105);
  EXPECT_EQ(curve(2), 110);
  EXPECT_EQ(curve(6), 150);
  EXPECT_EQ(curve(20), 290);
  EXPECT_EQ(Curve()(5), 0);
}

TEST(CostModel, AStepIsTheSumOfItsTerms) {
  const CostModel model = CostModel::parse(kModel, "test").value();
  EXPECT_EQ(model.gpus, 8);
  EXPECT_EQ(model.groups, 2);
  StepShape shape;
  shape.add(1, 100, 1);
  shape.add(1, 200, 1);
  // Rows, exchanges, context, sequences, logits.
  EXPECT_DOUBLE_EQ(model.step_us(shape), 110 + 3 * 7 + 0.5 * 300 + 2 * 2 + 2);
}

TEST(CostModel, ComesBackAsItWasWritten) {
  const CostModel model = CostModel::parse(kModel, "test").value();
  const CostModel again = CostModel::parse(model.json(), "again").value();
  EXPECT_EQ(again.json(), model.json());
  EXPECT_EQ(again.us_of, model.us_of);
  EXPECT_EQ(again.exchange.us, model.exchange.us);
  EXPECT_EQ(again.host_us, 50);
}

TEST(CostModel, RefusesWhatIsNone) {
  for (const char* bad :
       {"", "[]", "{}", R"({"rows": {"at": [], "us": []}})", R"({"rows": {"at": [1, 2], "us": [1]}})",
        R"({"rows": {"at": [2, 1], "us": [1, 2]}})", R"({"rows": {"at": [1], "us": [-1]}})",
        R"({"rows": {"at": [1], "us": [1]}, "us_of": {"context": -1}})",
        R"({"rows": {"at": [1], "us": [1]}, "gpus": 0})"}) {
    const auto model = CostModel::parse(bad, "test");
    ASSERT_FALSE(model.ok()) << bad;
    EXPECT_FALSE(model.error().message.empty());
  }
}

}  // namespace
}  // namespace sparrow
