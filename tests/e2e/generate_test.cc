// SPDX-License-Identifier: Apache-2.0
// `sparrow generate` with text and with a file of prompts, and `sparrow bench engine`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/json/json.h"
#include "support/program.h"
#include "support/temp_dir.h"

namespace sparrow::test {
namespace {

using testing::HasSubstr;

class GenerateTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(run_sparrow({"make-model", "--preset", "tiny", "--out", model_}).exit_code, 0);
  }

  // The answers to these lines.
  std::vector<std::string> answers(const std::string& lines, std::vector<std::string> more = {}) {
    std::ofstream(dir_.path() / "in.jsonl") << lines;
    std::vector<std::string> command = {"generate",
                                        "--model",
                                        model_,
                                        "--prompts",
                                        dir_.path() / "in.jsonl",
                                        "--out",
                                        dir_.path() / "out.jsonl",
                                        "--temperature",
                                        "0",
                                        "--ignore-eos"};
    command.insert(command.end(), more.begin(), more.end());
    const auto result = run_sparrow(command);
    EXPECT_EQ(result.exit_code, result.err.find("failed") == std::string::npos ? 0 : 1) << result.err;
    EXPECT_EQ(result.out, "");
    err_ = result.err;
    std::vector<std::string> all;
    std::ifstream file(dir_.path() / "out.jsonl");
    for (std::string line; std::getline(file, line);) all.push_back(line);
    return all;
  }

  TempDir dir_;
  const std::string model_ = dir_.path() / "model";
  std::string err_;
};

std::string ids_of(const std::string& line) {
  const JsonDocument document = JsonDocument::parse(line, "line").value();
  const Json ids = document.root().at("output_ids").value();
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i)
    text += strf("{}{}", i == 0 ? "" : " ", ids.element(i).as_int(0, 1 << 20).value());
  return text;
}

TEST_F(GenerateTest, AFileOfPromptsIsAnsweredInOrderAsEachPromptAlone) {
  std::string lines, ids = "3";
  for (int i = 4; i < 300; ++i) ids += strf(",{}", i);
  for (int i = 0; i < 9; ++i)
    lines += strf(R"({{"id": "r{}", "prompt_ids": [{},{}], "max_tokens": {}}})", i, ids, i, 20 - i) + "\n";
  const auto together = answers(lines, {"--concurrency", "5"});
  EXPECT_THAT(err_, HasSubstr("generating: 9 in"));
  ASSERT_EQ(together.size(), 9u);
  EXPECT_EQ(answers(lines, {"--concurrency", "1", "--chunk", "7"}).size(), 9u);
  int cached = 0;
  for (int i = 0; i < 9; ++i) {
    EXPECT_THAT(together[i], HasSubstr(strf(R"({{"id": "r{}", "output_ids": [)", i)));
    EXPECT_THAT(together[i], HasSubstr(R"("finish_reason": "length")"));
    cached += together[i].find("\"cached_tokens\": 256") != std::string::npos;
    const auto alone =
        run_sparrow({"generate", "--model", model_, "--prompt-ids", strf("{},{}", ids, i), "--max-tokens",
                     strf("{}", 20 - i), "--temperature", "0", "--ignore-eos"});
    EXPECT_EQ(ids_of(together[i]) + "\n", alone.out) << i;
  }
  EXPECT_EQ(cached, 8) << "all but the first find the two blocks they share";
}

TEST_F(GenerateTest, ABadLineGetsAnErrorLineAndTheRestGoesOn) {
  const auto lines = answers(
      "{\"id\": 1, \"prompt\": \"Hello\", \"max_tokens\": 3}\n"
      "{\"id\": 2, \"prompt_ids\": [1], \"top_p\": 7}\n"
      "\n"
      "{\"id\": 3, \"prompt_ids\": [1, 512]}\n"
      "{\"id\": 4, \"prompt_ids\": [1], \"max_tokens\": 70000}\n"
      "{\"id\": 5, \"prompt_ids\": [1], \"colour\": \"red\"}\n"
      "oops\n"
      "{\"id\": 6, \"prompt_ids\": [2], \"max_tokens\": 2}");
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_THAT(lines[0], HasSubstr(R"("finish_reason": "length")"));
  EXPECT_EQ(lines[1], R"({"id": 2, "line": 2, "error": "top_p must be in (0, 1], got 7"})");
  EXPECT_EQ(
      lines[2],
      R"x({"id": 3, "line": 4, "error": "prompt id 512 at index 1 is not in the vocabulary [0, 512)"})x");
  EXPECT_THAT(lines[3], HasSubstr("70000 new ones exceed the model's 65536 positions"));
  EXPECT_THAT(lines[4], HasSubstr(R"(unknown field \"colour\" with value \"red\")"));
  EXPECT_THAT(lines[5], HasSubstr(R"({"id": null, "line": 7, "error": "line is not valid JSON)"));
  EXPECT_THAT(lines[6], HasSubstr(R"({"id": 6, "output_ids": [)"));
  EXPECT_THAT(err_, HasSubstr("5 of 7 prompts failed"));
}

TEST_F(GenerateTest, TheAnswersDoNotOverwriteThePrompts) {
  const std::string file = dir_.path() / "in.jsonl", line = R"({"prompt_ids": [1], "max_tokens": 1})";
  std::ofstream(file) << line;
  std::filesystem::create_symlink(file, dir_.path() / "same.jsonl");
  for (const std::string& out : {file, std::string(dir_.path() / "same.jsonl")}) {
    const auto result = run_sparrow({"generate", "--model", model_, "--prompts", file, "--out", out});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(strf("--out {} is the file of --prompts", out)));
    std::ifstream kept(file);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(kept), {}), line);
  }
}

TEST_F(GenerateTest, OneTokenHasNoRate) {
  const auto result = run_sparrow({"generate", "--model", model_, "--prompt-ids", "1", "--max-tokens", "1"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("prefill 1 tokens in "));
  EXPECT_THAT(result.err, ::testing::Not(HasSubstr("tokens/s")));
}

TEST_F(GenerateTest, ATextPromptGivesText) {
  const auto ids = run_sparrow({"tokenize", "--model", model_, "Sparse attention"});
  std::string list = ids.out.substr(0, ids.out.find('\n'));
  const std::vector<std::string> rest = {"--max-tokens", "12", "--seed", "3", "--ignore-eos"};
  std::vector<std::string> by_text = {"generate", "--model", model_, "--prompt", "Sparse attention"};
  std::vector<std::string> by_ids = {"generate", "--model", model_, "--prompt-ids", list};
  by_text.insert(by_text.end(), rest.begin(), rest.end());
  by_ids.insert(by_ids.end(), rest.begin(), rest.end());
  const auto text = run_sparrow(by_text), made = run_sparrow(by_ids);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  const auto decoded = run_sparrow({"tokenize", "--model", model_, "--decode", "--skip-special", made.out});
  EXPECT_EQ(text.out, decoded.out + "\n");
}

TEST_F(GenerateTest, WhereThePromptComesFromIsSaidOnce) {
  const auto fails = [&](std::vector<std::string> args) {
    args.insert(args.begin(), {"generate", "--model", model_});
    const auto result = run_sparrow(args);
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(fails({}), HasSubstr("--prompt-ids,--prompt,--prompts"));
  EXPECT_THAT(fails({"--prompt", "x", "--prompt-ids", "1"}), HasSubstr("Exactly 1"));
  EXPECT_THAT(fails({"--prompts", "x.jsonl"}), HasSubstr("--out"));
  EXPECT_THAT(fails({"--prompt", "x", "--concurrency", "2"}), HasSubstr("--prompts"));
  EXPECT_THAT(fails({"--prompts", "/nonexistent.jsonl", "--out", "/tmp/x"}), HasSubstr("/nonexistent.jsonl"));
  EXPECT_THAT(fails({"--promt-ids", "1"}), HasSubstr("did you mean --prompt-ids?"));
  std::filesystem::remove(std::filesystem::path(model_) / "tokenizer.json");
  EXPECT_THAT(fails({"--prompt", "x"}), HasSubstr("tokenizer.json"));
}

TEST_F(GenerateTest, BenchEngineMeasuresAMix) {
  const std::vector<std::string> command = {
      "bench",        "engine", "--model",         model_, "--num-prompts",  "8",   "--input-len", "300",
      "--output-len", "5",      "--shared-prefix", "256",  "--arrival-rate", "1000"};
  const auto table = run_sparrow(command);
  ASSERT_EQ(table.exit_code, 0) << table.err;
  for (const char* row : {"tokens in", "tokens out", "time to first token", "time for each token", "p50",
                          "p90", "p99", "sequences in a step", "cache hit rate", "preemptions"})
    EXPECT_THAT(table.out, HasSubstr(row));

  std::vector<std::string> with_json = command;
  with_json.push_back("--json");
  const auto json = run_sparrow(with_json);
  const JsonDocument document = JsonDocument::parse(json.out, "bench").value();
  const Json root = document.root();
  EXPECT_EQ(root.int_or("computed_tokens", 0, 0, 1 << 20).value(), 256 + 8 * (44 + 4)) << "the prefix once";
  EXPECT_GT(root.number_or("tokens_out_per_s", 0).value(), 0);
  EXPECT_GT(root.at("first_token_ms").value().number_or("p99", 0).value(), 0);

  const auto tight = run_sparrow({"bench", "engine", "--model", model_, "--max-batch-tokens", "100"});
  EXPECT_EQ(tight.exit_code, 2);
  EXPECT_THAT(tight.err, HasSubstr("--max-batch-tokens 100 is less than --max-sequences 256"));
  const auto wrong =
      run_sparrow({"bench", "engine", "--model", model_, "--input-len", "10", "--shared-prefix", "20"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("--shared-prefix 20 is longer than --input-len 10"));
}

}  // namespace
}  // namespace sparrow::test
