// SPDX-License-Identifier: Apache-2.0
// `simulate` and `plan --slo` from the command line, as somebody uses them who plans a fleet.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "base/strf.h"
#include "support/program.h"
#include "support/temp_dir.h"

namespace sparrow::test {
namespace {

using testing::HasSubstr;

struct SimulateCommand : testing::Test {
  std::string write(const char* name, const std::string& text) const {
    std::ofstream(folder.path() / name) << text;
    return (folder.path() / name).string();
  }
  const TempDir folder;
  const std::string model = write(
      "cost.json",
      R"({"name": "test", "gpus": 8, "cache_tokens": 100000, "rows": {"at": [1, 8193], "us": [5000, 90000]}})");
  const std::string trace = write("trace.jsonl",
                                  R"({"arrival": 0, "prompt_tokens": 900, "output_tokens": 12, "session": 1}
{"arrival": 2, "prompt_tokens": 1200, "output_tokens": 3, "session": 1}
)");
};

// Exit code 2, nothing on stdout, and on stderr the flag or field with its value; then how to get help.
TEST_F(SimulateCommand, WhatIsWrongIsSaidInOneLine) {
  const std::string steps = write("steps.jsonl", R"({"batch": 1, "queries": 1, "context": 8, "step_us": 9})");
  const std::string launches = write("launches.json", R"({"one_launch": {"a": 1}})");
  const std::string huge = write("huge.json", R"({"cache_tokens": 1099511627776, "rows": {}})");
  const struct {
    std::vector<std::string> args;
    std::string says;
  } cases[] = {
      {{"simulate"}, "simulate needs --cost-model"},
      {{"simulate", "--cost-model", "/none.json"}, "/none.json"},
      {{"simulate", "--cost-model", trace}, "trace.jsonl"},
      {{"simulate", "--cost-model", huge}, "huge.json.cache_tokens must be"},
      {{"simulate", "--cost-model", model, "--workload", "agent"}, "--workload must be chat, agents, batch"},
      {{"simulate", "--cost-model", model, "--workload", trace, "--requests", "5"},
       "--requests has no meaning with --workload"},
      {{"simulate", "--cost-model", model, "--workload", trace, "--seed", "5"}, "--seed has no meaning"},
      {{"simulate", "--cost-model", model, "--workload", "batch", "--rate", "5"}, "--rate has no meaning"},
      {{"simulate", "--cost-model", model, "--workload", "batch", "--users", "5"}, "--users has no meaning"},
      {{"simulate", "--cost-model", model, "--users", "5", "--rate", "5"}, "--rate excludes --users"},
      {{"simulate", "--cost-model", model, "--users", "0"}, "--users: Value 0 not in range"},
      {{"simulate", "--cost-model", model, "--rate", "0"}, "--rate: Value 0 not in range"},
      {{"simulate", "--cost-model", model, "--rate", "nan"}, "--rate must be above 0, got nan"},
      {{"simulate", "--cost-model", model, "--requests", "99999999999"}, "--requests: Value 99999999999"},
      {{"simulate", "--cost-model", model, "--instances", "0"}, "--instances: Value 0 not in range"},
      {{"simulate", "--cost-model", model, "--instances", "2,x"}, "--instances"},
      {{"simulate", "--cost-model", model, "--instances", "4096", "--cache-tokens", "68719476736"},
       "--instances 4096 with 68719476736 cached tokens each would take"},
      {{"simulate", "--cost-model", model, "--router", "prefix,random"}, "--router must be round-robin"},
      {{"simulate", "--cost-model", model, "--max-num-batched-tokens", "0"}, "--max-num-batched-tokens"},
      {{"simulate", "--cost-model", model, "--svg", "/proc/no/such.svg"}, "/proc/no/such.svg"},
      {{"simulate", "--cost-model", model, "--json", "/dev/full", "--workload", trace}, "/dev/full"},
      {{"simulate", "--fit", steps, "--validate", steps}, "excludes"},
      {{"simulate", "--fit", steps, "--instances", "2"}, "--instances excludes --fit"},
      {{"simulate", "--cost-model", model, "--validate", steps, "--svg", "x"}, "--validate excludes --svg"},
      {{"simulate", "--cost-model", model, "--ranks", "8"}, "--ranks requires --fit"},
      {{"simulate", "--fit", trace}, strf("no records of `bench step --json` in '{}'", trace)},
      {{"simulate", "--fit", steps, "--ranks", "8", "--exchange", launches},
       "launches.json.one_launch must be a list"},
  };
  for (const auto& [args, says] : cases) {
    const auto result = run_sparrow(args);
    const std::string shown = testing::PrintToString(args);
    EXPECT_EQ(result.exit_code, 2) << shown << result.err;
    EXPECT_THAT(result.err, HasSubstr(says)) << shown;
    EXPECT_LE(std::count(result.err.begin(), result.err.end(), '\n'), 3) << shown << result.err;
  }
}

TEST_F(SimulateCommand, PlanRefusesWhatItWouldIgnore) {
  const struct {
    std::vector<std::string> args;
    std::string says;
  } cases[] = {
      {{"--slo", "ttft=1s"}, "--slo needs --cost-model"},
      {{"--slo", "ttft=1s,percentile=99ms", "--cost-model", model}, "got \"percentile=99ms\""},
      {{"--slo", "ttft=fast", "--cost-model", model}, "got \"ttft=fast\""},
      {{"--slo", "ttft=1s", "--cost-model", model, "--max-gpus", "7"}, "--max-gpus 7: an instance"},
      {{"--slo", "ttft=1s", "--cost-model", model, "--gpus", "8"}, "--gpus excludes --slo"},
      {{"--slo", "ttft=1s", "--cost-model", model, "--kv-cache-dtype", "fp8"},
       "--kv-cache-dtype excludes --slo"},
      {{"m3", "--slo", "ttft=1s", "--cost-model", model}, "m3 has no meaning here"},
      {{"m3", "--workload", "agents"}, "--workload requires --slo"},
      {{"m3", "--users", "8"}, "--users requires --slo"},
  };
  for (const auto& [args, says] : cases) {
    std::vector<std::string> all = {"plan"};
    all.insert(all.end(), args.begin(), args.end());
    const auto result = run_sparrow(all);
    EXPECT_EQ(result.exit_code, 2) << testing::PrintToString(all) << result.err;
    EXPECT_THAT(result.err, HasSubstr(says)) << testing::PrintToString(all);
    EXPECT_EQ(result.out, "");
  }
}

TEST_F(SimulateCommand, ATraceGivesATableAndFiles) {
  const std::string json = folder.path() / "out.json", svg = folder.path() / "out.svg";
  const auto result = run_sparrow({"simulate", "--cost-model", model, "--trace", trace, "--instances", "1,2",
                                   "--router", "prefix,round-robin", "--json", json, "--svg", svg});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("2 requests of trace.jsonl, on test"));
  EXPECT_THAT(result.out, testing::Not(testing::ContainsRegex("%[0-9]")));  // columns stay apart
  // Fewer tokens than sequences: as many, as `serve` does it.
  EXPECT_EQ(
      run_sparrow({"simulate", "--cost-model", model, "--trace", trace, "--max-num-batched-tokens", "1"})
          .exit_code,
      0);
  EXPECT_GT(std::filesystem::file_size(json), 1000u);
  EXPECT_GT(std::filesystem::file_size(svg), 1000u);
}

}  // namespace
}  // namespace sparrow::test
