// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate/load/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "support/temp_dir.h"

namespace sparrow::cli {
namespace {

using testing::HasSubstr;

TEST(Workload, GeneratedOnesDependOnTheirSeed) {
  const WorkloadOptions chat{.kind = "chat", .requests = 200, .seed = 1};
  const FleetWorkload first = make_workload(chat).value(), second = make_workload(chat).value();
  WorkloadOptions other = chat;
  other.seed = 2;
  const FleetWorkload third = make_workload(other).value();
  ASSERT_EQ(first.requests.size(), 200u);
  const auto lengths = [](const FleetWorkload& workload) {
    std::vector<int64_t> all;
    for (const SimRequest& request : workload.requests) all.push_back(request.prompt_tokens);
    return all;
  };
  EXPECT_EQ(lengths(first), lengths(second));
  EXPECT_NE(lengths(first), lengths(third));
}

TEST(Workload, WhatHasNoMeaningIsRefused) {
  const struct {
    WorkloadOptions options;
    const char* flag;
  } cases[] = {{{.kind = "batch", .rate = 5}, "--rate"},
               {{.kind = "batch", .users = 5}, "--users"},
               {{.kind = "x.jsonl", .rate = 5}, "--rate"},
               {{.kind = "x.jsonl", .users = 5}, "--users"},
               {{.kind = "x.jsonl", .seed = 5}, "--seed"},
               {{.kind = "x.jsonl", .requests = 5}, "--requests"},
               {{.kind = "x.jsonl"}, "--workload must be"},
               {{.kind = "chat", .rate = std::nan("")}, "--rate must be above 0, got nan"}};
  for (const auto& [options, flag] : cases)
    EXPECT_THAT(make_workload(options).error().message, testing::StartsWith(flag));
}

TEST(Workload, TracesAreRead) {
  const test::TempDir folder;
  const std::filesystem::path file = folder.path() / "trace.jsonl";
  std::ofstream(file) << R"({"arrival": 1.5, "prompt_tokens": 900, "output_tokens": 120, "session": "a"}
{"timestamp": 2000, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]}

{"arrival": 3, "prompt_tokens": 2000, "output_tokens": 1, "session": "a"}
{"timestamp": 2500, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]}
)";
  const auto read = read_trace(file);
  ASSERT_TRUE(read.ok()) << read.error().message;
  const FleetWorkload& workload = read.value();
  ASSERT_EQ(workload.requests.size(), 4u);
  EXPECT_EQ(workload.requests[1].seconds, 2);
  EXPECT_EQ(workload.requests[2].after, 0);
  EXPECT_EQ(workload.requests[2].not_before, 3);
  const auto first = workload.prompt_of(workload.requests[0]),
             later = workload.prompt_of(workload.requests[2]);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), later.begin()));
  const auto a = workload.prompt_of(workload.requests[1]), b = workload.prompt_of(workload.requests[3]);
  EXPECT_EQ(a.size(), 1000u);
  EXPECT_EQ(b.size(), 1100u);
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin()));
}

// Every line is bad in one way, and the message names the line and the field.
TEST(Workload, BadTracesAreRefusedByLineAndField) {
  const test::TempDir folder;
  const std::filesystem::path file = folder.path() / "trace.jsonl";
  const std::string good = R"({"arrival": 1, "prompt_tokens": 9, "output_tokens": 1, "session": "a"})";
  const struct {
    const char *line, *message;
  } cases[] = {
      {"{", "trace.jsonl:2"},
      {"[]", "trace.jsonl:2 must be"},
      {"7", "trace.jsonl:2 must be"},
      {"\xff", "trace.jsonl:2"},
      {R"({"prompt_tokens": 9, "output_tokens": 1})", "trace.jsonl:2.arrival"},
      {R"({"arrival": 1, "output_tokens": 1})", "trace.jsonl:2.prompt_tokens"},
      {R"({"arrival": 1, "prompt_tokens": 9})", "trace.jsonl:2.output_tokens"},
      {R"({"arrival": -1, "prompt_tokens": 9, "output_tokens": 1})", "trace.jsonl:2.arrival must be from 0"},
      {R"({"arrival": 1e300, "prompt_tokens": 9, "output_tokens": 1})", "trace.jsonl:2.arrival"},
      {R"({"arrival": "1", "prompt_tokens": 9, "output_tokens": 1})",
       "trace.jsonl:2.arrival must be a number"},
      {R"({"timestamp": -5, "prompt_tokens": 9, "output_tokens": 1})", "trace.jsonl:2.timestamp"},
      {R"({"arrival": 1, "timestamp": 1, "prompt_tokens": 9, "output_tokens": 1})", "beside arrival"},
      {R"({"arrival": 1, "prompt_tokens": 0, "output_tokens": 1})", "trace.jsonl:2.prompt_tokens"},
      {R"({"arrival": 1, "prompt_tokens": 1.5, "output_tokens": 1})", "trace.jsonl:2.prompt_tokens"},
      {R"({"arrival": 1, "prompt_tokens": 99999999999, "output_tokens": 1})", "trace.jsonl:2.prompt_tokens"},
      {R"({"arrival": 1, "prompt_tokens": 9, "output_tokens": -1})", "trace.jsonl:2.output_tokens"},
      {R"({"arrival": 1, "prompt_tokens": 9, "input_length": 9, "output_tokens": 1})",
       "beside prompt_tokens"},
      {R"({"arrival": 1, "prompt_tokens": 9, "output_tokens": 1, "sesion": "a"})", "did you mean session?"},
      {R"({"arrival": 1, "arrival": 2, "prompt_tokens": 9, "output_tokens": 1})", "trace.jsonl:2"},
      {R"({"arrival": 1, "prompt_tokens": 9, "output_tokens": 1, "session": []})", "trace.jsonl:2.session"},
      {R"({"arrival": 0, "prompt_tokens": 9, "output_tokens": 1, "session": "a"})", "in order"},
      {R"({"arrival": 1, "prompt_tokens": 9, "output_tokens": 1, "session": "b", "hash_ids": [1]})",
       "trace.jsonl:2.session must not stand beside hash_ids"},
      {R"({"arrival": 1, "prompt_tokens": 9, "output_tokens": 1, "hash_ids": 3})", "trace.jsonl:2.hash_ids"},
      {R"({"arrival": 1, "prompt_tokens": 9, "output_tokens": 1, "hash_ids": [1, 2]})",
       "trace.jsonl:2.hash_ids must be at most 1"},
      {R"({"arrival": 1, "prompt_tokens": 9, "output_tokens": 1, "hash_ids": [{}]})",
       "trace.jsonl:2.hash_ids[0]"},
      {R"({"arrival": 1, "prompt_tokens": 9, "output_tokens": 1, "hash_tokens": 16})",
       "trace.jsonl:2.hash_tokens"},
      {R"({"arrival": 1, "prompt_tokens": 9, "output_tokens": 1, "hash_ids": [1], "hash_tokens": 0})",
       "trace.jsonl:2.hash_tokens"},
  };
  for (const auto& [line, message] : cases) {
    std::ofstream(file) << good << '\n' << line << '\n';
    const auto read = read_trace(file);
    ASSERT_FALSE(read.ok()) << line;
    EXPECT_THAT(read.error().message, HasSubstr("trace.jsonl:2")) << line;
    EXPECT_THAT(read.error().message, HasSubstr(message)) << line;
  }
  std::ofstream(file) << "\n \n";
  EXPECT_THAT(read_trace(file).error().message, HasSubstr("has no requests"));
  EXPECT_FALSE(read_trace(folder.path() / "none").ok());
  EXPECT_FALSE(read_trace(folder.path()).ok());
}

}  // namespace
}  // namespace sparrow::cli
