// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/json/json.h"
#include "cli/plan/plan.h"
#include "support/temp_dir.h"

namespace sparrow::cli {
namespace {

using testing::HasSubstr;

struct Simulate : testing::Test {
  std::string write(const char* name, const std::string& text) const {
    std::ofstream(folder.path() / name) << text;
    return (folder.path() / name).string();
  }
  std::string read(const char* name) const {
    std::ostringstream text;
    text << std::ifstream(folder.path() / name).rdbuf();
    return text.str();
  }
  std::string cost(const char* name, int gpus, int us) const {
    return write(
        strf("{}.json", name).c_str(),
        strf(R"({{"name": "{}", "gpus": {}, "cache_tokens": 200000, "rows": {{"at": [1], "us": [{}]}}}})",
             name, gpus, us));
  }
  const test::TempDir folder;
};

TEST_F(Simulate, PrintsATableAndWritesJsonAndAPicture) {
  SimulateOptions options{.cost_model = cost("quick <8>", 8, 5000),
                          .workload = {.kind = "chat", .requests = 60},
                          .instances = {1, 2},
                          .routers = {"round-robin", "prefix"},
                          .json = folder.path() / "out.json",
                          .svg = folder.path() / "out.svg"};
  testing::internal::CaptureStdout();
  const Status status = run_simulate(options);
  const std::string table = testing::internal::GetCapturedStdout();
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 2 + 4) << table;
  const JsonDocument json = JsonDocument::parse(read("out.json"), "out.json").value();
  ASSERT_EQ(json.root().size(), 4u);
  EXPECT_EQ(json.root().element(3).at("router")->as_string().value(), "prefix");
  EXPECT_EQ(json.root().element(3).at("gpus")->as_int(0, 99).value(), 16);
  const std::string svg = read("out.svg");
  EXPECT_THAT(svg, testing::StartsWith("<svg xmlns="));
  EXPECT_THAT(svg, HasSubstr("quick &lt;8>"));
  EXPECT_THAT(svg, testing::Not(HasSubstr("nan")));
  // Wrong ones say which.
  options.routers = {"random"};
  EXPECT_THAT(run_simulate(options).error().message, HasSubstr("--router"));
  options.routers = {"prefix"};
  options.json = folder.path() / "no" / "out.json";
  testing::internal::CaptureStdout();
  EXPECT_THAT(run_simulate(options).error().message, HasSubstr("out.json"));
  testing::internal::GetCapturedStdout();
  options.cost_model.clear();
  EXPECT_THAT(run_simulate(options).error().message, HasSubstr("--cost-model"));
}

TEST_F(Simulate, PlanNamesTheCheapestFirstAndThenTheOthers) {
  PlanCommandOptions options{
      .slo = "ttft=1s,itl=100ms",
      .workload = {.kind = "batch", .requests = 40},
      .cost_models = {cost("wide", 8, 2000), cost("slow", 4, 900'000), cost("small", 2, 3000)},
      .max_gpus = 64};
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const auto code = run_plan(options);
  const std::string table = testing::internal::GetCapturedStdout();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("slow: not with 64 GPUs: 95% of first tokens come within"));
  ASSERT_TRUE(code.ok()) << code.error().message;
  EXPECT_EQ(code.value(), 0);
  EXPECT_LT(table.find("small  "), table.find("wide  ")) << table;
  // Nothing is enough: 1, as where a model does not fit.
  options.cost_models = {options.cost_models[1]};
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_plan(options).value(), 1);
  testing::internal::GetCapturedStderr();
  options.slo = "ttft=soon";
  EXPECT_THAT(run_plan(options).error().message, HasSubstr("ttft=soon"));
  options.model = "m3";
  EXPECT_THAT(run_plan(options).error().message, HasSubstr("m3 has no meaning"));
  options.slo.clear();
  EXPECT_THAT(run_plan(options).error().message, HasSubstr("only with --slo"));
}

}  // namespace
}  // namespace sparrow::cli
