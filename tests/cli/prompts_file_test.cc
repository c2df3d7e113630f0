// SPDX-License-Identifier: Apache-2.0
#include "cli/run/prompts_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/golden.h"

namespace sparrow::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

PromptLine parse(std::string_view text, const Tokenizer* tokenizer = nullptr) {
  PromptLine line;
  const Status status = parse_prompt_line(text, tokenizer, line);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return line;
}

std::string error_of(std::string_view text, const Tokenizer* tokenizer = nullptr) {
  PromptLine line;
  const Status status = parse_prompt_line(text, tokenizer, line);
  return status.ok() ? "no error" : status.error().message;
}

TEST(PromptsFile, EveryFieldArrives) {
  const PromptLine line = parse(R"({"id": "x", "prompt_ids": [3, 4], "max_tokens": 7, "min_tokens": 2,
    "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2,
    "presence_penalty": 0.3, "frequency_penalty": -0.4, "logit_bias": {"17": -100, "18": 2.5},
    "allowed_token_ids": [1, 2], "banned_token_ids": [9], "stop_token_ids": [6], "ignore_eos": true,
    "seed": 9007199254740993, "priority": -2})");
  EXPECT_EQ(line.id, "\"x\"");
  const Request& r = line.request;
  ASSERT_EQ(r.prompts.size(), 1u);
  EXPECT_THAT(r.prompts[0], ElementsAre(3, 4));
  EXPECT_EQ(r.max_tokens, 7);
  EXPECT_EQ(r.min_tokens, 2);
  EXPECT_EQ(r.sampling.temperature, 0.5);
  EXPECT_EQ(r.sampling.top_p, 0.9);
  EXPECT_EQ(r.sampling.top_k, 5);
  EXPECT_EQ(r.sampling.min_p, 0.1);
  EXPECT_EQ(r.sampling.repetition_penalty, 1.2);
  EXPECT_EQ(r.sampling.presence_penalty, 0.3);
  EXPECT_EQ(r.sampling.frequency_penalty, -0.4);
  EXPECT_THAT(r.sampling.logit_bias, ElementsAre(std::pair(17, -100.0f), std::pair(18, 2.5f)));
  EXPECT_THAT(r.sampling.allowed_ids, ElementsAre(1, 2));
  EXPECT_THAT(r.sampling.banned_ids, ElementsAre(9));
  EXPECT_THAT(r.stop_ids, ElementsAre(6));
  EXPECT_TRUE(r.ignore_eos);
  EXPECT_EQ(r.sampling.seed, 9007199254740993u);
  EXPECT_EQ(r.priority, -2);
}

TEST(PromptsFile, WhatALineDoesNotSayStaysAsItWas) {
  PromptLine line{.id = "null", .request = {.sampling = {.temperature = 0.25}, .max_tokens = 99}};
  ASSERT_TRUE(parse_prompt_line(R"({"prompt_ids": [1], "temperature": null})", nullptr, line).ok());
  EXPECT_EQ(line.request.sampling.temperature, 0.25);
  EXPECT_EQ(line.request.max_tokens, 99);
  EXPECT_EQ(line.id, "null");
}

TEST(PromptsFile, TextNeedsATokenizer) {
  EXPECT_THAT(error_of(R"({"prompt": "Hi"})"),
              HasSubstr("prompt cannot be used: the model has no tokenizer.json"));
  const std::string json = [] {
    std::ifstream file(test::golden_dir() / "tokenizer/m3.tokenizer.json");
    return std::string(std::istreambuf_iterator<char>(file), {});
  }();
  const Tokenizer tokenizer = Tokenizer::parse(json).value();
  EXPECT_EQ(parse(R"({"prompt": "Hi there"})", &tokenizer).request.prompts[0],
            tokenizer.encode("Hi there").value());
}

TEST(PromptsFile, AMistakeIsNamedWithItsValue) {
  EXPECT_THAT(error_of("[1]"), HasSubstr("must be an object"));
  EXPECT_THAT(error_of("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of(R"({"prompt_ids": [1], "tempreature": 0.5})"),
              HasSubstr(R"(unknown field "tempreature" with value 0.5, did you mean temperature?)"));
  EXPECT_THAT(error_of(R"({"prompt_ids": [1], "zzz": "y"})"),
              HasSubstr(R"(unknown field "zzz" with value "y")"));
  EXPECT_THAT(error_of(R"({"prompt_ids": 5})"), HasSubstr("prompt_ids must be a list, got 5"));
  EXPECT_THAT(error_of(R"({"prompt_ids": [1, "a"]})"), HasSubstr("prompt_ids[1]"));
  EXPECT_THAT(error_of(R"({"prompt_ids": [1], "top_k": 1.5})"), HasSubstr("top_k"));
  EXPECT_THAT(error_of(R"({"prompt_ids": [1], "temperature": "hot"})"), HasSubstr("got \"hot\""));
  EXPECT_THAT(error_of(R"({"prompt_ids": [1], "logit_bias": {"x": 1}})"), HasSubstr("token ids as keys"));
  EXPECT_THAT(error_of(R"({"prompt_ids": [1], "ignore_eos": 1})"), HasSubstr("ignore_eos"));
  EXPECT_THAT(error_of(R"({"id": 1})"), HasSubstr("exactly one of prompt and prompt_ids"));
  EXPECT_THAT(error_of(R"({"id": true, "prompt_ids": [1]})"),
              HasSubstr("id must be a string or an integer, got true"));
}

TEST(PromptsFile, AnErrorKeepsTheIdOfItsLine) {
  PromptLine line;
  EXPECT_FALSE(parse_prompt_line(R"({"bad": 1, "id": 12345678901234567890})", nullptr, line).ok());
  EXPECT_EQ(line.id, "12345678901234567890");
}

TEST(PromptsFile, OutputLinesAreJson) {
  EXPECT_EQ(
      format_output_line(
          {.id = "7", .output_ids = {4, 5}, .finish = FinishReason::kStop, .cached_tokens = 128}, nullptr),
      R"({"id": 7, "output_ids": [4, 5], "text": null, "finish_reason": "stop", "cached_tokens": 128})");
  EXPECT_EQ(format_output_line({.id = "\"a\"", .number = 3, .error = "no \"luck\""}, nullptr),
            R"({"id": "a", "line": 3, "error": "no \"luck\""})");
}

}  // namespace
}  // namespace sparrow::cli
