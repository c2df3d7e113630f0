// SPDX-License-Identifier: Apache-2.0
#include "engine/sim/cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

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

// Measured ones may fall a little at their end; times below 0 are none.
TEST(Curve, DoesNotFallBeyondItsLastPoint) {
  const Curve curve{.at = {1, 10, 20}, .us = {100, 110, 90}};
  EXPECT_EQ(curve(15), 100);
  EXPECT_EQ(curve(20), 90);
  EXPECT_EQ(curve(8192), 90);
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

// A graph holds decodes, padded to its size; steps with prompts run as they are, on a curve of their own.
TEST(CostModel, StepsWithPromptsHaveTheirOwnCurve) {
  CostModel model{.rows = {.at = {1, 512}, .us = {1000, 1511}}};
  StepShape decodes, mixed;
  for (int i = 0; i < 9; ++i) decodes.add(1, 100, 1);
  EXPECT_EQ(model.step_us(decodes), 1009);  // in a graph of 10
  mixed = decodes;
  mixed.add(2, 50, 1);
  EXPECT_EQ(model.step_us(mixed), 1010);
  model.prompt_rows = {.at = {1, 101}, .us = {5000, 5100}};
  EXPECT_EQ(model.step_us(mixed), 5010);
  EXPECT_EQ(model.step_us(decodes), 1009);
  const CostModel again = CostModel::parse(model.json(), "again").value();
  EXPECT_EQ(again.step_us(mixed), 5010);
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
  const std::string good = R"("rows": {"at": [1], "us": [1]}, )";
  const struct {
    std::string json, says;
  } cases[] = {
      {"", "test"},
      {"[]", "test must be an object"},
      {"{}", "test.rows"},
      {R"({"rows": {"at": [], "us": []}})", "test.rows.us must be as many"},
      {R"({"rows": {"at": [1, 2], "us": [1]}})", "test.rows.us must be as many"},
      {R"({"rows": {"at": [2, 1], "us": [1, 2]}})", "test.rows.at must ascend"},
      {R"({"rows": {"at": [1], "us": [-1]}})", "test.rows.us must not be negative"},
      {R"({"rows": {"at": [1], "us": ["1"]}})", "test.rows.us[0] must be a number"},
      {R"({"rows": {"at": [1], "us": [1], "ms": [1]}})", "test.rows: there is no field \"ms\""},
      {"{" + good + R"("us_of": {"context": -1}})", "test.us_of.context must not be negative, got -1"},
      {"{" + good + R"("us_of": {"contexts": 1}})", "there is no field \"contexts\"; did you mean context?"},
      {"{" + good + R"("gpus": 0})", "test.gpus must be"},
      {"{" + good + R"("host_us": -3})", "test.host_us must not be negative, got -3"},
      {"{" + good + R"("cache_token": 5})", "did you mean cache_tokens?"},
      {"{" + good + R"("cache_tokens": 1099511627776})", "test.cache_tokens must be"},
      {"{" + good + R"("exchange": {"at": [1], "us": [7]}})",
       "test.exchange must not stand without exchanges"},
      {"{" + good + R"("exchanges": 121})", "test.exchanges must not stand without exchange"},
  };
  for (const auto& [json, says] : cases) {
    const auto model = CostModel::parse(json, "test");
    ASSERT_FALSE(model.ok()) << json;
    EXPECT_THAT(model.error().message, testing::HasSubstr(says)) << json;
  }
}

TEST(CostModel, AStepEndsSomeDay) {
  const CostModel model =
      CostModel::parse(R"({"rows": {"at": [1, 2], "us": [1e300, 1e301]}})", "test").value();
  StepShape shape;
  shape.add(8192, 8192, 1);
  EXPECT_EQ(model.step_us(shape), 1e12);
}

}  // namespace
}  // namespace sparrow
