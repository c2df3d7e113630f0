// SPDX-License-Identifier: Apache-2.0
// The program from its command line: what it prints, what it writes, and how it says no.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "support/golden.h"
#include "support/program.h"
#include "support/temp_dir.h"

namespace sparrow::test {
namespace {

using testing::HasSubstr;

constexpr double kF32Tolerance = 1e-4;  // as in the oracle test

int num_lines(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

std::vector<int> ids_in(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<int>(in), {}};
}

std::string join(const std::vector<int32_t>& values) {
  std::string text;
  for (const int32_t value : values) text += strf("{}{}", text.empty() ? "" : ",", value);
  return text;
}

std::filesystem::path write_ids(const std::filesystem::path& dir, const std::vector<int32_t>& ids) {
  std::ofstream(dir / "ids.json") << "[" << join(ids) << "]";
  return dir / "ids.json";
}

TEST(Program, TraceAgreesWithTheOracleForAnyChunk) {
  const TempDir dir;
  const TensorFile golden(golden_dir() / "yarn.golden.safetensors");
  const auto ids = write_ids(dir.path(), golden.ints("input_ids"));
  std::vector<std::string> files;
  for (const std::string chunk : {"300", "2200"}) {
    const auto out = dir.path() / (chunk + ".safetensors");
    const auto result = run_sparrow({"trace", "--model", golden_dir() / "yarn", "--ids", ids, "--positions",
                                     join(golden.ints("logit_positions")), "--chunk", chunk, "--decode", "48",
                                     "--shuffle-blocks", chunk, "--out", out});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const TensorFile trace(out);
    EXPECT_EQ(trace.ints("logit_positions"), golden.ints("logit_positions"));
    for (const std::string name : {"logits", "hidden.0", "hidden.1", "hidden.2", "greedy_logits"}) {
      EXPECT_EQ(trace.shape(name), golden.shape(name)) << name;
      EXPECT_LT(relative_error(trace.floats(name), golden.floats(name)), kF32Tolerance) << name;
    }
    EXPECT_EQ(trace.ints("greedy_ids"), golden.ints("greedy_ids"));
    EXPECT_EQ(trace.shape("selected_blocks.1"), golden.shape("selected_blocks.1"));
    const auto match =
        compare_selections(trace.ints("selected_blocks.1"), golden.ints("selected_blocks.1"), 4);
    EXPECT_EQ(match.equal, match.rows);
    std::ifstream file(out, std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  EXPECT_EQ(files[0], files[1]) << "the files of two chunk sizes differ";
}

TEST(Program, TraceRecordsExactlyThePositionsAskedFor) {
  const TempDir dir;
  const auto ids = write_ids(dir.path(), {1, 2, 3, 4, 5});
  const auto out = dir.path() / "t.safetensors";
  const auto result = run_sparrow(
      {"trace", "--model", golden_dir() / "yarn", "--ids", ids, "--positions", "3,0,-4", "--out", out});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const TensorFile trace(out);
  EXPECT_EQ(trace.ints("logit_positions"), (std::vector<int32_t>{0, 1, 3}));
  EXPECT_EQ(trace.shape("logits"), (std::vector<int64_t>{3, 320}));
  EXPECT_EQ(trace.shape("hidden.2"), (std::vector<int64_t>{3, 128}));
  EXPECT_EQ(trace.shape("selected_blocks.1"), (std::vector<int64_t>{1, 3, 4}));
  EXPECT_EQ(trace.ints("greedy_ids").size(), 1u);
  EXPECT_FALSE(trace.has("greedy_logits"));
}

TEST(Program, MakesAModelAndGeneratesFromItTheSameWayTwice) {
  const TempDir dir;
  for (const std::string dtype : {"bf16", "f32", "mxfp8"}) {
    const auto model = dir.path() / dtype;
    const auto made =
        run_sparrow({"make-model", "--preset", "tiny", "--seed", "3", "--dtype", dtype, "--out", model});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    const std::vector<std::string> base = {"generate", "--model",      model, "--prompt-ids",
                                           "1,2,3,4",  "--max-tokens", "24",  "--ignore-eos"};
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.begin(), base.begin(), base.end());
      const auto result = run_sparrow(more);
      EXPECT_EQ(result.exit_code, 0) << result.err;
      EXPECT_THAT(result.err, HasSubstr("decode 23 tokens in"));
      return ids_in(result.out);
    };
    const auto greedy = with({"--temperature", "0"});
    ASSERT_EQ(greedy.size(), 24u);
    EXPECT_EQ(with({"--temperature", "0", "--chunk", "1", "--threads", "1"}), greedy);
    const auto sampled = with({"--temperature", "1", "--top-p", "0.95", "--seed", "5"});
    EXPECT_EQ(with({"--temperature", "1", "--top-p", "0.95", "--seed", "5", "--chunk", "3"}), sampled);
    EXPECT_NE(with({"--temperature", "1", "--top-p", "0.95", "--seed", "6"}), sampled);
    EXPECT_EQ(with({"--temperature", "1", "--top-k", "1"}), greedy);
  }
}

TEST(Program, AModelThatCouldNotBeMadeDoesNotLookLikeOne) {
  const TempDir dir;
  const auto model = dir.path() / "m";
  std::filesystem::create_directories(model / "tokenizer.json");  // where a file should go
  const std::vector<std::string> command = {"make-model", "--preset", "tiny", "--out", model.string() + "/"};
  const auto failed = run_sparrow(command);
  EXPECT_EQ(failed.exit_code, 2);
  EXPECT_THAT(failed.err, HasSubstr("tokenizer.json' exists already"));
  std::filesystem::remove(model / "tokenizer.json");
  EXPECT_TRUE(std::filesystem::is_empty(model)) << "what was written is gone again";
  const auto made = run_sparrow(command);
  EXPECT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.err, HasSubstr("writing m: "));
}

// The system's signal would end the program without a word.
TEST(Program, AFileThatMayNotGrowIsAnErrorLikeAFullDisk) {
  const TempDir dir;
  const std::string model = dir.path() / "m", target = dir.path() / "o/p/q";
  ASSERT_EQ(run_sparrow({"make-model", "--preset", "tiny", "--out", model}).exit_code, 0);
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"make-model", "--preset", "tiny", "--out", target},
        {"quantize", model, target, "--format", "mxfp4"}}) {
    rlimit limit{};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    const rlim_t before = std::exchange(limit.rlim_cur, rlim_t{500} << 10);
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto result = run_sparrow(command);
    limit.rlim_cur = before;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(num_lines(result.err), 1);
    EXPECT_THAT(result.err, HasSubstr("too large"));
    EXPECT_FALSE(std::filesystem::exists(dir.path() / "o"));
  }
}

TEST(Program, AnEndTokenEndsTheOutputUnlessIgnored) {
  const TempDir dir;
  const auto model = dir.path() / "m";
  ASSERT_EQ(run_sparrow({"make-model", "--preset", "tiny", "--out", model}).exit_code, 0);
  const std::vector<std::string> command = {
      "generate", "--model", model, "--prompt-ids", "5", "--max-tokens", "12", "--temperature", "0"};
  const auto ignored = [&] {
    auto with_flag = command;
    with_flag.push_back("--ignore-eos");
    return ids_in(run_sparrow(with_flag).out);
  }();
  ASSERT_EQ(ignored.size(), 12u);
  // Make the fourth token of the greedy output the end token.
  const size_t end = std::find(ignored.begin(), ignored.end(), ignored[3]) - ignored.begin();
  std::ofstream(model / "generation_config.json") << "{\"eos_token_id\": [" << ignored[3] << "]}";
  const auto result = run_sparrow(command);
  EXPECT_EQ(ids_in(result.out), std::vector<int>(ignored.begin(), ignored.begin() + end + 1)) << result.err;
}

TEST(Program, HelpTeachesByExample) {
  const auto top = run_sparrow({"--help"});
  EXPECT_EQ(top.exit_code, 0);
  for (const char* word : {"serve", "plan", "doctor", "generate", "trace", "make-model", "Examples:"})
    EXPECT_THAT(top.out, HasSubstr(word));
  for (const char* command : {"serve", "plan", "doctor", "generate", "trace", "make-model"}) {
    const auto help = run_sparrow({command, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_THAT(help.out, HasSubstr("Examples:")) << command;
  }
  EXPECT_THAT(run_sparrow({"--version"}).out, HasSubstr("sparrow "));
}

TEST(Program, WhatCannotBePrintedIsAnError) {
  const std::string model = golden_dir() / "yarn";
  const std::vector<std::vector<std::string>> commands = {
      {"--version"},
      {"plan", "tiny"},
      {"plan", "tiny", "--json"},
      {"doctor", "--port", "0"},
      {"generate", "--model", model, "--prompt-ids", "1", "--max-tokens", "2"}};
  for (const auto& command : commands) {
    const auto result = run_sparrow(command, "", "/dev/full");
    EXPECT_EQ(result.exit_code, 2) << testing::PrintToString(command);
    EXPECT_THAT(result.err, HasSubstr("standard output cannot be written: No space left on device"));
  }
}

struct BadCommand {
  std::vector<std::string> args;
  std::string says;
};

TEST(Program, BadCommandLinesGetOneLineThatNamesTheMistake) {
  const std::string model = golden_dir() / "yarn";
  const std::vector<BadCommand> cases = {
      {{"generate", "--modle", "x"}, "unknown flag --modle, did you mean --model?"},
      {{"generate", "--model", model, "--prompt-ids", "1", "--max-token", "3"}, "did you mean --max-tokens?"},
      {{"generat"}, "unknown command generat, did you mean generate?"},
      {{"serve", model, "--prot", "1"}, "unknown flag --prot, did you mean --port?"},
      {{"serve", model, "--block-size", "64"}, "--block-size 64: only 128"},
      {{"generate", "--model", model, "--prompt-ids", "1", "--tensor-parallel-size", "3"},
       "cannot be split over 3 ranks; 2 GPUs: TP2"},
      {{"generate", "--model", model, "--prompt-ids", "1", "--tp", "16"}, "cannot be split over 16 ranks"},
      {{"generate", "--model", model, "--prompt-ids", "1", "--rank", "1"}, "--rank 1: the grid has one rank"},
      {{"generate", "--model", model, "--prompt-ids", "1", "--tp", "2", "--rank", "1"},
       "--rank 1 without --world-size"},
      {{"serve", model, "--nnodes", "2"}, "--nnodes 2: the grid has one rank"},
      {{"serve", model, "--device", "cpu", "--gpu-memory-utilization", "0.9"},
       "--gpu-memory-utilization: there is no GPU in use"},
      {{"generate", "--model", model, "--prompt-ids", "1", "--device", "cpu", "--gpu-memory-utilization",
        "0.9"},
       "--gpu-memory-utilization: there is no GPU in use"},
      {{"serve", model, "--device", "cpu", "--kv-cache-dtype", "fp8"}, "--kv-cache-dtype fp8: needs a GPU"},
      {{"serve", model, "--kv-cache-dtype", "int4"},
       "--kv-cache-dtype must be auto, bfloat16 (bf16) or fp8 (fp8_e4m3), got int4"},
      {{"generate", "--model", model, "--prompt-ids", "1", "--device", "cpu", "--index-cache-dtype", "fp8"},
       "--index-cache-dtype fp8: needs a GPU"},
      {{"serve", model, "--index-cache-dtype", "int4"},
       "--index-cache-dtype must be auto, bfloat16 (bf16) or fp8 (fp8_e4m3), got int4"},
      {{"serve", model, "--device", "cpu", "--activation-dtype", "fp8"},
       "--activation-dtype fp8: needs a GPU"},
      {{"serve", model, "--activation-dtype", "int8"},
       "--activation-dtype must be auto, bfloat16 (bf16) or fp8 (fp8_e4m3), got int8"},
      {{"serve", model, "--load-format", "gguf"}, "--load-format gguf: auto (the checkpoint) or dummy"},
      {{"serve", model, "--device", "tpu"}, "--device must be auto, cpu, cuda or sim, got tpu"},
      {{"serve", model, "--sim-output-tokens", "5"}, "--sim-output-tokens: only with --device sim"},
      {{"serve", model, "--max-image-pixels", "100"}, "--max-image-pixels: Value 100 not in range 784"},
      {{"bench", "step"}, "bench step needs either --model or --preset"},
      {{"bench", "step", "--preset", "m3", "--batch", "8,0"}, "--batch: Value 0 not in range"},
      {{"bench", "step", "--preset", "m3", "--context", "0"}, "--context: Value 0 not in range"},
      {{"bench", "step", "--preset", "m3", "--phase", "train"},
       "--phase must be decode, prefill or mixed, got train"},
      {{"bench", "step", "--preset", "m3", "--device", "cpu"}, "bench step measures a GPU"},
      {{"bench", "step", "--preset", "m3", "--gpu-memory-utilization", "1.5"},
       "--gpu-memory-utilization must be in (0, 1], got 1.5"},
      {{"serve", model, "--tool-call-parser", "hermes"}, "parser hermes: minimax_m3 or none"},
      {{"serve", model, "--hf-overrides", "{"}, "--hf-overrides is not valid JSON"},
      {{"serve", model, "--hf-overrides", ""}, "--hf-overrides: must be JSON, got nothing"},
      {{"serve", model, "--load-format", "dummy"},
       "has no tokenizer.json: a server needs the model's tokenizer files"},
      {{"generate", "--model", model, "--prompt-ids", "1", "--hf-overrides", "{\"text_config\": {\"x\": 1}}"},
       "--hf-overrides: text_config.x is 1, and the text model's configuration has no such field"},
      {{"generate", "--model", model, "--prompt-ids", "1", "--hf-overrides",
        "{\"text_config\": {\"hidden_size\": \"a\"}}"},
       "text_config.hidden_size must be an integer"},
      {{"plan", "nothing"}, "\"nothing\" is neither a folder, nor a config.json, nor one of"},
      {{"plan", "m3", "--gpu", "abacus"}, "--gpu must be one of h100"},
      {{"plan", "m3", "--gpus", "3"}, "num_attention_heads 64 cannot be split over 3 ranks"},
      {{"plan", "m3", "--gpus", "0"}, "--gpus"},
      {{"plan", "m3", "--gpu-memory-utilization", "1.5"}, "--gpu-memory-utilization"},
      {{"plan", "m3", "--max-model-len", "2000000"},
       "--max-model-len 2000000 exceeds the model's 1048576 positions"},
      {{"plan", "m3", "--gpu", "cpu", "--kv-cache-dtype", "fp8"}, "--kv-cache-dtype fp8: needs a GPU"},
      {{"plan", "m3", "--gpu", "cpu", "--index-cache-dtype", "fp8"}, "--index-cache-dtype fp8: needs a GPU"},
      {{"plan", "m3", "--kv-cache-memory", "much"}, "--kv-cache-memory must be a size such as 4G"},
      {{"doctor", "--prot", "1"}, "unknown flag --prot, did you mean --port?"},
      {{"doctor", ""}, "--model: must not be empty"},
      {{"serve", model, "--trust-request-chat-template"}, "--trust-request-chat-template"},
      {{"serve", model, "--host", "0.0.0.0"}, "give --api-key, or --allow-unauthenticated"},
      {{"serve", model, "--host", "127.example.com"}, "127.example.com can be reached from other machines"},
      {{"serve", model, "--kv-cache-memory", "much"}, "--kv-cache-memory must be a size such as 4G"},
      {{"serve", model, "--ssl-certfile", "x"}, "--ssl-certfile and --ssl-keyfile belong together"},
      {{"chat", "--url", "ftp://x"},
       "--url must look like http://127.0.0.1:8000 or https://host, got ftp://x"},
      {{"generate", "--model", model}, "--prompt-ids"},
      {{}, "sparrow --help"},
      {{"generate", "--model", model, "--prompt-ids", "1", "--max-tokens", "0"}, "--max-tokens"},
      {{"generate", "--model", model, "--prompt-ids", "1", "--max-tokens", "abc"}, "abc"},
      {{"generate", "--model", model, "--prompt-ids", "1", "--threads", "4096"},
       "--threads: Value 4096 not in"},
      {{"serve", model, "--threads", "4096"}, "--threads: Value 4096 not in range 1 to 4095"},
      {{"generate", "--model", model, "--prompt-ids", "1", "--seed", "-1"}, "--seed: Value -1 not in range"},
      {{"serve", model, "--seed", "99999999999999999999"}, "--seed: Value 99999999999999999999 not in range"},
      {{"serve", model, "--max-model-len", "0"}, "--max-model-len: it must be at least 1, or auto; got 0"},
      {{"generate", "--model", model, "--prompt-ids", "1", "--temperature", "-1"}, "temperature"},
      {{"chat", "--temperature", "nan"}, "--temperature: Value nan not in range"},
      {{"chat", "--temperature", "inf"}, "--temperature: Value inf not in range"},
      {{"serve", model, "--host", ""}, "--host: Must not be empty"},
      {{"serve", model, "--host", "[::2]"}, "--host ::2 can be reached from other machines"},
      {{"serve", model, "--dtype", "float16"}, "--dtype: float16 not in {auto,bfloat16}"},
      {{"serve", model, "--tokenizer-mode", "slow"}, "--tokenizer-mode: slow not in {auto}"},
      {{"serve", model, "--tool-call-parser", "x"}, "--tool-call-parser x: minimax_m3 or none"},
      {{"serve", model, "--reasoning-parser", "x"}, "--reasoning-parser x: minimax_m3 or none"},
      {{"generate", "--model", model, "--prompt-ids", "1", "--top-p", "0"}, "top_p"},
      {{"generate", "--model", model, "--prompt-ids", "1,320"}, "prompt id 320"},
      {{"generate", "--model", model, "--prompt-ids", "1,-1"}, "prompt id -1"},
      {{"generate", "--model", model, "--prompt-ids", "1,x"}, "1,x"},
      {{"generate", "--model", model, "--prompt-ids", "1", "--max-tokens", "9000"}, "8192 positions"},
      {{"generate", "--model", "/nonexistent", "--prompt-ids", "1"}, "/nonexistent"},
      {{"make-model", "--preset", "huge", "--out", "/tmp/x"}, "huge"},
      {{"make-model", "--preset", "tiny", "--out", "/proc/no/such"}, "/proc/no/such"},
      {{"make-model", "--preset", "tiny", "--out", model}, "config.json"},
      {{"trace", "--model", model, "--ids", "/nonexistent.json", "--out", "/tmp/x"}, "/nonexistent.json"},
      {{"trace", "--model", model, "--ids", model + "/config.json", "--out", model + "/./config.json"},
       "config.json is the file of the prompt, which it would overwrite"},
      {{"bench", "engine", "--model", model, "--input-len", "16777216", "--num-prompts", "16777216"},
       "--input-len 16777216 and --output-len 64 exceed the model's 8192 positions"},
  };
  for (const BadCommand& bad : cases) {
    const auto result = run_sparrow(bad.args);
    const std::string shown = testing::PrintToString(bad.args);
    EXPECT_EQ(result.exit_code, 2) << shown << result.err;
    EXPECT_THAT(result.err, HasSubstr(bad.says)) << shown;
    EXPECT_EQ(result.out, "") << shown;
    EXPECT_THAT(result.err, HasSubstr("sparrow: ")) << shown;
    EXPECT_LE(num_lines(result.err), 3) << shown << result.err;
  }
}

}  // namespace
}  // namespace sparrow::test
