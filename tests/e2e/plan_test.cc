// SPDX-License-Identifier: Apache-2.0
// `plan`, `doctor`, random weights and overrides, from the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/json/json.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/temp_dir.h"

namespace sparrow::test {
namespace {

using testing::HasSubstr;

TEST(Plan, ShowsATableOrOneLineOfJson) {
  const auto table = run_sparrow({"plan", "m3", "--gpus", "8", "--max-model-len", "131072"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  for (const char* word : {"8 x h200", "routed experts", "index keys", "tokens in the cache", "101.46 GiB"})
    EXPECT_THAT(table.out, HasSubstr(word));
  EXPECT_EQ(table.err, "");

  const auto json = run_sparrow({"plan", "m3", "--gpus", "8", "--max-model-len", "131072", "--json"});
  EXPECT_EQ(json.exit_code, 0);
  const auto document = JsonDocument::parse(json.out, "plan");
  ASSERT_TRUE(document.ok()) << document.error().message;
  const Json root = document->root();
  EXPECT_EQ(root.at("parameters")->as_int(0, INT64_MAX).value(), 427040140160);
  EXPECT_TRUE(root.at("fits")->as_bool().value());
  EXPECT_EQ(root.at("kv_token_bytes")->as_int(0, INT64_MAX).value(), 30720);
  const auto bytes = [&](const char* key) { return root.at(key)->as_int(0, INT64_MAX).value(); };
  EXPECT_EQ(root.at("driver")->at("captured steps")->as_int(0, INT64_MAX).value(), int64_t{512} << 20);
  EXPECT_GT(root.at("workspace")->at("draws")->as_int(0, INT64_MAX).value(), 0);
  EXPECT_GT(bytes("pinned_host_bytes"), 0);
  EXPECT_LE(bytes("weight_bytes") + bytes("workspace_bytes") + bytes("driver_bytes") + bytes("cache_bytes"),
            bytes("budget_bytes"));
}

TEST(Plan, ExitsWithOneWhereItDoesNotFit) {
  const auto result = run_sparrow({"plan", "m3", "--gpus", "4"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("does not fit"));
  EXPECT_THAT(result.out, HasSubstr("fits with --gpus 8"));
}

TEST(Plan, TakesAFolderOrAConfigurationWithOverrides) {
  const std::string folder = golden_dir() / "yarn";
  const auto whole = run_sparrow({"plan", folder, "--gpu", "cpu", "--json"});
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  const auto file = run_sparrow({"plan", folder + "/config.json", "--gpu", "cpu", "--json", "--hf-overrides",
                                 R"({"text_config": {"max_position_embeddings": 777}})"});
  EXPECT_EQ(file.exit_code, 0) << file.err;
  EXPECT_THAT(file.out, HasSubstr("\"max_model_len\": 777"));
}

TEST(DoctorCommand, FindsNothingWrongHereAndFailsForAFolderThatIsNoModel) {
  const auto here = run_sparrow({"doctor", "--port", "0"});
  EXPECT_EQ(here.exit_code, 0) << here.out;
  EXPECT_THAT(here.out, HasSubstr("kernels"));
  const TempDir empty;
  const auto none = run_sparrow({"doctor", empty.path(), "--port", "0", "--json"});
  EXPECT_EQ(none.exit_code, 1);
  const auto document = JsonDocument::parse(none.out, "doctor");
  ASSERT_TRUE(document.ok()) << document.error().message;
  EXPECT_FALSE(document->root().at("ok")->as_bool().value());
}

// A folder without a tokenizer is what stops it, after all flags.
TEST(ServeFlags, ThoseOfOtherServersAreKnown) {
  const std::string model = golden_dir() / "yarn";
  const auto result = run_sparrow({"serve",
                                   model,
                                   "--host",
                                   "127.0.0.1",
                                   "--port",
                                   "0",
                                   "--served-model-name",
                                   "a",
                                   "--api-key",
                                   "k",
                                   "--max-model-len",
                                   "128",
                                   "--max-num-seqs",
                                   "2",
                                   "--max-num-batched-tokens",
                                   "64",
                                   "--kv-cache-dtype",
                                   "auto",
                                   "--block-size",
                                   "128",
                                   "--kv-cache-memory",
                                   "1M",
                                   "--tensor-parallel-size",
                                   "1",
                                   "--data-parallel-size",
                                   "1",
                                   "--enable-prefix-caching",
                                   "--tool-call-parser",
                                   "minimax_m3",
                                   "--reasoning-parser",
                                   "minimax_m3",
                                   "--enable-auto-tool-choice",
                                   "--chat-template",
                                   "t",
                                   "--hf-overrides",
                                   "{}",
                                   "--language-model-only",
                                   "--generation-config",
                                   "auto",
                                   "--seed",
                                   "1",
                                   "--load-format",
                                   "auto"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("has no tokenizer.json"));
  const auto without = run_sparrow({"serve", model, "--no-enable-prefix-caching", "--load-format", "dummy"});
  EXPECT_THAT(without.err, HasSubstr("has no tokenizer.json"));
  const auto longer = run_sparrow({"serve", model, "--trust-request-chat-template"});
  EXPECT_THAT(longer.err, HasSubstr("--trust-request-chat-template: templates come from the model"));
}

TEST(DummyWeights, GenerateWhatTheirCheckpointGenerates) {
  const TempDir dir;
  const auto model = dir.path() / "m";
  ASSERT_EQ(run_sparrow({"make-model", "--preset", "tiny", "--out", model}).exit_code, 0);
  const auto generate = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {"generate", "--model",      model, "--prompt-ids",
                                     "1,2,3",    "--max-tokens", "8",   "--temperature",
                                     "0",        "--ignore-eos"};
    args.insert(args.end(), more.begin(), more.end());
    return run_sparrow(args);
  };
  const auto real = generate({});
  ASSERT_EQ(real.exit_code, 0) << real.err;
  // Overrides reach the run.
  const auto turned = generate({"--hf-overrides", R"({"text_config": {"rope_theta": 100}})"});
  EXPECT_EQ(turned.exit_code, 0) << turned.err;
  EXPECT_NE(turned.out, real.out);
  for (const auto& entry : std::filesystem::directory_iterator(model))
    if (entry.path().filename().string().starts_with("model")) std::filesystem::remove(entry.path());
  const auto none = generate({});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("--load-format dummy runs with random weights"));
  const auto dummy = generate({"--load-format", "dummy"});
  EXPECT_EQ(dummy.exit_code, 0) << dummy.err;
  EXPECT_EQ(dummy.out, real.out);
}

}  // namespace
}  // namespace sparrow::test
