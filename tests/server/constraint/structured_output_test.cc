// SPDX-License-Identifier: Apache-2.0
// Answers of random weights that are held to a form: they come to an end, and they fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <regex>

#include "base/json/json.h"
#include "support/server/service_fixture.h"

namespace sparrow {
namespace {

using namespace test;
using testing::AnyOf;
using testing::Eq;

class StructuredOutput : public ServiceTest {
 protected:
  static std::string id(std::string_view token) { return std::to_string(*shared_tokenizer().id_of(token)); }
  // The first choice of a chat, and the document that it is in.
  Json choice(const std::string& fields) {
    const RawResponse response = ask(
        json_post("/v1/chat/completions",
                  R"({"messages":[{"role":"user","content":"the fox"}],"temperature":1)" + fields +
                      (fields.find("\"max_tokens\"") == std::string::npos ? R"(,"max_tokens":900})" : "}")));
    EXPECT_EQ(response.status, 200) << response.body;
    documents_.push_back(JsonDocument::parse(response.body, "answer").value());
    return documents_.back().root().at("choices").value().element(0);
  }
  static std::string text(const Json& value) { return std::string(value.string_view()); }
  static std::string content(const Json& choice) {
    return without_end(text(choice.at("message").value().at("content").value()));
  }
  // The end of this model is an ordinary byte of its tokenizer, and so a part of the text.
  static std::string without_end(std::string text) {
    if (text.ends_with('\2')) text.pop_back();
    return text;
  }
  static std::string seeded(int seed) {
    return strf(R"(,"seed":{},"chat_template_kwargs":{{"thinking_mode":"disabled"}})", seed);
  }

  std::deque<JsonDocument> documents_;
};

constexpr const char* kSchema =
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":8},"age":{"type":"integer","minimum":0,"maximum":120},)"
    R"("tags":{"type":"array","items":{"enum":["red","green"]},"maxItems":3},"fast":{"type":"boolean"}},)"
    R"("required":["name","age","tags"],"additionalProperties":false})";

void expect_person(std::string_view json) {
  const auto document = JsonDocument::parse(json, "content");
  ASSERT_TRUE(document.ok()) << json;
  const Json root = document.value().root();
  EXPECT_TRUE(root.at("age").value().as_int(0, 120).ok()) << json;
  EXPECT_TRUE(root.at("name").value().is_string()) << json;
  const Json tags = root.at("tags").value();
  EXPECT_TRUE(tags.is_array() && tags.size() <= 3) << json;
  for (size_t i = 0; i < tags.size(); ++i)
    EXPECT_THAT(std::string(tags.element(i).string_view()), AnyOf(Eq("red"), Eq("green")));
}

TEST_F(StructuredOutput, SchemasInEveryField) {
  start();
  const std::string schema = kSchema;
  const std::string fields[] = {
      R"(,"response_format":{"type":"json_schema","json_schema":{"name":"p","strict":true,"schema":)" +
          schema + "}}",
      R"(,"structured_outputs":{"json":)" + schema + "}", R"(,"guided_json":)" + schema,
      R"(,"guided_json":)" + json_quoted(schema)};
  int seed = 0;
  for (const std::string& field : fields) {
    const Json answer = choice(field + seeded(++seed));
    EXPECT_EQ(text(answer.at("finish_reason").value()), "stop");
    expect_person(content(answer));
  }
}

// They share a constraint, and their masks are made at the same time.
TEST_F(StructuredOutput, ChoicesOfOneRequestEachKeepToIt) {
  start();
  const RawResponse response = ask(json_post(
      "/v1/completions",
      strf(R"({{"prompt":"the fox","max_tokens":900,"n":8,"temperature":1,"seed":4,"guided_json":{}}})",
           kSchema)));
  ASSERT_EQ(response.status, 200) << response.body;
  const JsonDocument document = JsonDocument::parse(response.body, "answer").value();
  const Json choices = document.root().at("choices").value();
  ASSERT_EQ(choices.size(), 8u);
  for (size_t i = 0; i < choices.size(); ++i)
    expect_person(without_end(text(choices.element(i).at("text").value())));
}

TEST_F(StructuredOutput, RegexChoiceAndGrammar) {
  start();
  for (int seed = 0; seed < 3; ++seed) {
    const std::string words =
        content(choice(R"(,"guided_choice":["red fox","red hen","owl"])" + seeded(seed)));
    EXPECT_THAT(words, AnyOf(Eq("red fox"), Eq("red hen"), Eq("owl")));
    const std::string number =
        content(choice(R"(,"structured_outputs":{"regex":"[1-9][0-9]{0,3}(\\.5)?"})" + seeded(seed)));
    EXPECT_TRUE(std::regex_match(number, std::regex("[1-9][0-9]{0,3}(\\.5)?"))) << number;
    const std::string sum =
        content(choice(R"(,"guided_grammar":"root ::= n (\"+\" n){1,3}\nn ::= [0-9]{1,2}")" + seeded(seed)));
    EXPECT_TRUE(std::regex_match(sum, std::regex("[0-9]{1,2}(\\+[0-9]{1,2}){1,3}"))) << sum;
  }
}

TEST_F(StructuredOutput, CompletionsHaveFormsToo) {
  start();
  const RawResponse response = ask(json_post(
      "/v1/completions", R"({"prompt":"the fox","max_tokens":50,"n":3,"guided_choice":["yes","no"]})"));
  ASSERT_EQ(response.status, 200) << response.body;
  const JsonDocument document = JsonDocument::parse(response.body, "answer").value();
  for (size_t i = 0; i < 3; ++i)
    EXPECT_THAT(without_end(text(document.root().at("choices").value().element(i).at("text").value())),
                AnyOf(Eq("yes"), Eq("no")));
}

TEST_F(StructuredOutput, BeginsWhereTheThinkingEnds) {
  start();
  int thoughts = 0;  // the tag may come at once
  for (int seed = 0; seed < 3; ++seed) {
    const Json answer = choice(strf(R"(,"seed":{},"guided_choice":["red","blue"],"logit_bias":{{"{}":6}},)"
                                    R"("chat_template_kwargs":{{"thinking_mode":"enabled"}})",
                                    seed, id("</mm:think>")));
    EXPECT_THAT(content(answer), AnyOf(Eq("red"), Eq("blue")));
    thoughts += answer.at("message").value().find("reasoning").has_value();
  }
  EXPECT_GT(thoughts, 0);
}

// Of a text that has to come the tokens are appended, and run with the next one that is drawn.
TEST_F(StructuredOutput, TextThatHasToComeTakesNoStepsOfItsOwn) {
  start();
  const std::string words = "the quick brown fox jumps over the lazy dog";
  const auto steps_of = [&](const std::string& fields, std::string_view expected) {
    const int64_t before = engine_->stats().steps;
    const Json answer = choice(fields + seeded(1));
    EXPECT_EQ(content(answer), expected);
    return engine_->stats().steps - before;
  };
  const std::string one = strf(R"(,"guided_choice":["{}"])", words);
  EXPECT_LE(steps_of(one, words), 8);
  EXPECT_LE(steps_of(R"(,"guided_json":{"const":")" + words + "\"}", '"' + words + '"'), 8);
  // Probabilities are those of draws, and where some words are bad the model spells the others.
  EXPECT_GE(steps_of(one + R"(,"logprobs":true)", words), 20);
  EXPECT_GE(steps_of(one + R"(,"bad_words":["zebra"])", words), 8);
}

TEST_F(StructuredOutput, ACallThatHasToComeTakesFewSteps) {
  start();
  const int64_t before = engine_->stats().steps, tokens = engine_->stats().generated_tokens;
  const Json answer = choice(
      R"(,"tools":[{"type":"function","function":{"name":"find_the_route","parameters":{"type":"object",)"
      R"("properties":{"destination":{"enum":["somewhere"]}},"required":["destination"],)"
      R"("additionalProperties":false}}}],"tool_choice":"required","parallel_tool_calls":false)" +
      seeded(1));
  const Json call = answer.at("message").value().at("tool_calls").value().element(0).at("function").value();
  EXPECT_EQ(text(call.at("arguments").value()), R"({"destination":"somewhere"})");
  EXPECT_LT(2 * (engine_->stats().steps - before), engine_->stats().generated_tokens - tokens);
}

// What a form allows ends there, and what it does not allow never comes.
TEST_F(StructuredOutput, AStopIdEndsTheAnswerWhereItComes) {
  start();
  const std::string form = R"(,"guided_choice":["abc"])" + seeded(1);
  for (const auto& [token, expected] : {std::pair("b", "ab"), {"x", "abc"}, {"c", "abc"}}) {
    const Json answer = choice(form + strf(R"(,"stop_token_ids":[{}])", id(token)));
    EXPECT_EQ(content(answer), expected);
    EXPECT_EQ(text(answer.at("finish_reason").value()), "stop");
  }
}

// Nothing can be said after it.
TEST_F(StructuredOutput, EndsWithTheFormWhateverElseIsAskedFor) {
  start();
  const std::string form = R"(,"guided_choice":["abc","abcd"])" + seeded(1);
  for (const std::string& more :
       {std::string(R"(,"min_tokens":12)"), std::string(R"(,"ignore_eos":true)"),
        strf(R"(,"min_tokens":12,"ignore_eos":true,"stop_token_ids":[{}])", id("d"))}) {
    const Json answer = choice(form + more);
    EXPECT_THAT(content(answer), AnyOf(Eq("abc"), Eq("abcd"))) << more;
    EXPECT_EQ(text(answer.at("finish_reason").value()), "stop");
  }
}

TEST_F(StructuredOutput, ACutSaysLength) {
  start();
  const Json answer = choice(R"(,"guided_regex":"[ab]{5000}","max_tokens":12)" + seeded(1));
  EXPECT_EQ(text(answer.at("finish_reason").value()), "length");
}

TEST_F(StructuredOutput, CallsFitTheirSchemas) {
  start();
  const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"save","parameters":)" +
                            std::string(kSchema) + "}}]";
  for (int seed = 0; seed < 3; ++seed) {
    for (const char* how : {R"(,"tool_choice":"required","parallel_tool_calls":false)",
                            R"(,"tool_choice":{"type":"function","function":{"name":"save"}})"}) {
      const Json answer = choice(tools + how + seeded(seed));
      EXPECT_EQ(text(answer.at("finish_reason").value()), "tool_calls");
      const Json call =
          answer.at("message").value().at("tool_calls").value().element(0).at("function").value();
      EXPECT_EQ(text(call.at("name").value()), "save");
      expect_person(text(call.at("arguments").value()));
    }
  }
}

// With tools that need not be called, an answer is of the form or a call.
TEST_F(StructuredOutput, FormsBesideTools) {
  start();
  const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"save","parameters":)" +
                            std::string(kSchema) + "}}]";
  for (int seed = 0; seed < 4; ++seed) {
    const Json answer =
        choice(tools + R"(,"parallel_tool_calls":false,"guided_choice":["red","blue"])" + seeded(seed));
    if (text(answer.at("finish_reason").value()) == "tool_calls")
      expect_person(text(answer.at("message")
                             .value()
                             .at("tool_calls")
                             .value()
                             .element(0)
                             .at("function")
                             .value()
                             .at("arguments")
                             .value()));
    else
      EXPECT_THAT(content(answer), AnyOf(Eq("red"), Eq("blue")));
  }
}

}  // namespace
}  // namespace sparrow
