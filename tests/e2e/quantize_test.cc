// SPDX-License-Identifier: Apache-2.0
// `sparrow quantize` from the command line, and what runs on its checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/files/mapped_file.h"
#include "support/checkpoint/expanded.h"
#include "support/program.h"
#include "support/temp_dir.h"

namespace sparrow::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string greedy_ids(const std::string& model) {
  std::string prompt = "3";
  for (int i = 4; i < 300; ++i) prompt += "," + std::to_string(i * 7 % 500);
  const auto result = run_sparrow({"generate", "--model", model, "--prompt-ids", prompt, "--max-tokens", "48",
                                   "--temperature", "0", "--ignore-eos", "--device", "cpu"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

// The whole way: a model, its quantised checkpoint, and the bf16 one that this stands for.
TEST(Quantize, GeneratesWhatTheExpandedCheckpointDoes) {
  const TempDir dir;
  const std::string model = dir.path() / "m";
  ASSERT_EQ(run_sparrow({"make-model", "--preset", "tiny", "--seed", "5", "--out", model}).exit_code, 0);
  for (const std::string format : {"mxfp8", "mxfp4", "mxfp4-mxfp8"}) {
    const std::string quantised = dir.path() / format, expanded = dir.path() / (format + "-bf16");
    const auto result = run_sparrow({"quantize", model, quantised, "--format", format});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, AllOf(HasSubstr("routed experts"), HasSubstr("RMS error"), HasSubstr("before"),
                                  HasSubstr("worst matrix: language_model.")));
    EXPECT_THAT(result.err, HasSubstr("quantizing to " + format));
    write_expanded(quantised, expanded);
    EXPECT_EQ(greedy_ids(quantised), greedy_ids(expanded)) << format;
    // Text comes with it.
    EXPECT_EQ(run_sparrow({"tokenize", "--model", quantised, "Hello"}).exit_code, 0);
  }
}

TEST(Quantize, RandomCheckpointsOfEveryFormatRun) {
  for (const std::string format : {"mxfp8", "mxfp4", "mxfp4-mxfp8"}) {
    const TempDir dir;
    const std::string model = dir.path() / "m", expanded = dir.path() / "bf16";
    ASSERT_EQ(run_sparrow({"make-model", "--preset", "tiny", "--dtype", format, "--out", model}).exit_code,
              0);
    write_expanded(model, expanded);
    EXPECT_EQ(greedy_ids(model), greedy_ids(expanded)) << format;
    // Random weights for its configuration are those that it holds.
    const auto dummy = run_sparrow({"generate", "--model", model, "--load-format", "dummy", "--prompt-ids",
                                    "1,2,3", "--temperature", "0", "--max-tokens", "8"});
    const auto real = run_sparrow(
        {"generate", "--model", model, "--prompt-ids", "1,2,3", "--temperature", "0", "--max-tokens", "8"});
    EXPECT_EQ(dummy.out, real.out) << dummy.err << real.err;
  }
}

TEST(Quantize, SaysWhatIsWrong) {
  const TempDir dir;
  const std::string model = dir.path() / "m", target = dir.path() / "q";
  ASSERT_EQ(run_sparrow({"make-model", "--preset", "tiny", "--out", model}).exit_code, 0);
  const auto error = [](const std::vector<std::string>& args) {
    const auto result = run_sparrow(args);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    return result.err;
  };
  EXPECT_THAT(error({"quantize", model, model, "--format", "mxfp8"}), HasSubstr("is the source itself"));
  EXPECT_THAT(error({"quantize", model, target, "--format", "int4"}),
              HasSubstr("int4 not in {mxfp8,mxfp4,mxfp4-mxfp8}"));
  EXPECT_THAT(error({"quantize", model, target}), HasSubstr("--format is required"));
  EXPECT_THAT(error({"quantize", dir.path(), target, "--format", "mxfp8"}), HasSubstr("config.json"));
  EXPECT_THAT(error({"quantize", model, "/proc/q", "--format", "mxfp8"}),
              HasSubstr("cannot create '/proc/q'"));
  EXPECT_THAT(error({"quantize", model, "", "--format", "mxfp8"}), HasSubstr("empty name"));
  EXPECT_FALSE(std::filesystem::exists(target));
  ASSERT_EQ(run_sparrow({"quantize", model, target, "--format", "mxfp8"}).exit_code, 0);
  EXPECT_THAT(error({"quantize", model, target, "--format", "mxfp8"}), HasSubstr("name a new folder"));
  const auto copy = run_sparrow({"quantize", target, dir.path() / "copy", "--format", "mxfp8"});
  EXPECT_THAT(copy.err, HasSubstr("the source is MXFP8 already: copied as it is"));
  const auto other = run_sparrow({"quantize", target, dir.path() / "other", "--format", "mxfp4"});
  EXPECT_THAT(other.err, HasSubstr("its weights were rounded before"));
}

// What files say is shown on a terminal, which must not obey it.
TEST(Quantize, NamesOfTensorsAreShownAndNotObeyed) {
  const TempDir dir;
  const std::string model = dir.path() / "m", index = dir.path() / "m/model.safetensors.index.json";
  ASSERT_EQ(run_sparrow({"make-model", "--preset", "tiny", "--out", model}).exit_code, 0);
  ASSERT_TRUE(write_text_file(index, "{\"weight_map\": {\"\\u001b[2J\\nsparrow: ok\": \"a/b\"}}").ok());
  for (const char* command : {"quantize", "doctor"}) {
    const auto result = command == std::string("doctor")
                            ? run_sparrow({"doctor", model})
                            : run_sparrow({"quantize", model, dir.path() / "q", "--format", "mxfp8"});
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.out + result.err, HasSubstr("tensor \\x1b[2J\\x0asparrow: ok is in"));
  }
}

}  // namespace
}  // namespace sparrow::test
