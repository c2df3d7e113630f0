// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/temp_dir.h"

namespace sparrow::cli {
namespace {

StepRecord record(const CostModel& of, int64_t batch, int64_t queries, int64_t context) {
  StepRecord record;
  for (int64_t i = 0; i < batch; ++i) record.shape.add(queries, context, 1);
  record.us = of.step_us(record.shape);
  return record;
}

TEST(Fit, FindsAModelFromItsOwnSteps) {
  CostModel truth{.rows = {.at = {1, 8, 64, 512, 4096}, .us = {2000, 5000, 9000, 15'000, 60'000}}};
  truth.us_of = {0.004, 0.007, 3, 0.001, 5e-5, 5e-4, 20, 0};
  std::vector<StepRecord> records, held_back;
  for (const int64_t context : {512, 2048, 32'768, 131'072}) {
    for (const int64_t batch : {1, 2, 4, 8, 16, 32, 64, 128, 256})
      records.push_back(record(truth, batch, 1, context));
    for (const int64_t chunk : {128, 512}) records.push_back(record(truth, 1, chunk, context));
    for (const int64_t chunk : {1024, 2048, 4096}) records.push_back(record(truth, 1, chunk, context + 4096));
    for (const int64_t batch : {3, 11, 100}) held_back.push_back(record(truth, batch, 1, context + 1000));
    held_back.push_back(record(truth, 2, 700, context + 5000));
  }
  CostModel fitted;
  fit(fitted, records);
  for (const auto* list : {&records, &held_back})
    for (const StepRecord& step : *list) EXPECT_NEAR(ratio(fitted, step), 1, 0.05);
  for (const double us : fitted.us_of) EXPECT_GE(us, 0);
}

// Rows of prompts cost more here than rows of graphs; steps that mix them are of the former.
TEST(Fit, TellsStepsWithPromptsFromOthers) {
  const CostModel truth{.rows = {.at = {1, 256}, .us = {1000, 2000}},
                        .prompt_rows = {.at = {1, 512}, .us = {3000, 9000}}};
  std::vector<StepRecord> records;
  for (const int64_t rows : {1, 2, 4, 8, 16, 32, 64, 128, 256}) records.push_back(record(truth, rows, 1, 10));
  CostModel fitted;
  fit(fitted, records);
  EXPECT_TRUE(fitted.prompt_rows.at.empty());
  for (const int64_t rows : {2, 8, 32, 128, 256, 512}) records.push_back(record(truth, 1, rows, 600));
  fit(fitted, records);
  EXPECT_NEAR(ratio(fitted, record(truth, 100, 1, 10)), 1, 0.02);
  EXPECT_NEAR(ratio(fitted, record(truth, 1, 400, 600)), 1, 0.02);
  StepRecord mixed = record(truth, 60, 1, 10);
  mixed.shape.add(100, 600, 1);
  mixed.us = truth.step_us(mixed.shape);
  EXPECT_NEAR(ratio(fitted, mixed), 1, 0.02);
}

// Where nothing was measured between two numbers of rows the curve is straight.
TEST(Fit, IsStraightWhereNothingWasMeasured) {
  const CostModel truth{.rows = {.at = {1, 4096}, .us = {1000, 5095}}};
  std::vector<StepRecord> records;
  for (const int64_t rows : {1, 2, 4, 4096}) records.push_back(record(truth, rows, 1, 100));
  CostModel fitted;
  fit(fitted, records);
  EXPECT_EQ(fitted.rows.at, (std::vector<double>{1, 2, 4, 4096}));
  EXPECT_NEAR(ratio(fitted, record(truth, 1024, 1, 100)), 1, 0.02);
}

TEST(Fit, LeavesTheExchangeOut) {
  CostModel model{.rows = {.at = {1}, .us = {1000}}, .exchange = {.at = {1}, .us = {10}}, .exchanges = 100};
  StepRecord step{.what = "decode 1 x 1", .us = 1000};
  step.shape.add(1, 1, 1);
  EXPECT_EQ(ratio(model, step), 1);
  EXPECT_EQ(model.step_us(step.shape), 2000);
  EXPECT_THAT(validation_table(model, {&step, 1}), testing::HasSubstr("1 steps: 100.0% within 10%"));
}

TEST(Fit, ReadsWhatBenchStepPrints) {
  const test::TempDir folder;
  const std::filesystem::path file = folder.path() / "steps.jsonl";
  std::ofstream(file) << R"({"commit": "abc", "date": "today"}
{"phase": "decode", "batch": 8, "queries": 1, "context": 2048, "step_us": 5000.5, "parts": {}}
{"phase": "prefill", "batch": 2, "queries": 128, "context": 4096, "step_us": 9000}
{"phase": "mixed", "batch": 3, "queries": 1, "context": 2048, "prompt_queries": 64, "prompt_context": 100, "step_us": 7000}
)";
  const auto records = read_step_records({&file, 1});
  ASSERT_TRUE(records.ok()) << records.error().message;
  ASSERT_EQ(records->size(), 3u);
  EXPECT_EQ(records->at(0).what, "decode 8 x 2048");
  EXPECT_EQ(records->at(0).us, 5000.5);
  EXPECT_EQ(records->at(1).shape.rows, 256);
  const StepShape& mixed = records->at(2).shape;
  EXPECT_EQ(records->at(2).what, "mixed 3 x 2048 and 64 of 100");
  EXPECT_EQ(mixed.rows, 67);
  EXPECT_EQ(mixed.sequences, 3);
  EXPECT_EQ(mixed.context, 3 * 2048);
  EXPECT_EQ(mixed.prompts, 1);
  EXPECT_EQ(mixed.prompt_context, 100);
  const struct {
    const char *line, *field;
  } bad[] = {
      {R"({"batch": 8, "queries": 1, "step_us": 1})", "context"},
      {R"({"batch": 8, "queries": 9, "context": 8, "step_us": 1})", "context"},
      {R"({"batch": 0, "queries": 1, "context": 8, "step_us": 1})", "batch"},
      {R"({"batch": 8, "queries": 1, "context": 8, "step_us": 0})", "step_us"},
      {R"({"batch": 8, "queries": 1, "context": 8, "step_us": 1, "prompt_queries": 9})", "prompt_context"},
      {R"({"batch": 8, "queries": 1, "context": 8, "step_us": "1"})", "step_us"}};
  for (const auto& [line, field] : bad) {
    std::ofstream(file) << "{}\n" << line;
    EXPECT_THAT(read_step_records({&file, 1}).error().message,
                testing::HasSubstr(std::string("steps.jsonl:2.") + field))
        << line;
  }
  std::ofstream(file) << "{}";
  EXPECT_FALSE(read_step_records({&file, 1}).ok());
  std::ofstream(file)
      << R"({"one_launch": [{"ranks": 8, "rows": 4, "us": 9}, {"ranks": 8, "rows": 1, "us": 6},
                             {"ranks": 8, "rows": 4, "us": 7}, {"ranks": 2, "rows": 1, "us": 4}]})";
  const auto exchange = read_exchange(file, 8);
  ASSERT_TRUE(exchange.ok()) << exchange.error().message;
  EXPECT_EQ(exchange->at, (std::vector<double>{1, 4}));
  EXPECT_EQ(exchange->us, (std::vector<double>{6, 7}));
  EXPECT_FALSE(read_exchange(file, 4).ok());
}

}  // namespace
}  // namespace sparrow::cli
