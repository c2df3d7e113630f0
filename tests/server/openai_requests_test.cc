// SPDX-License-Identifier: Apache-2.0
// Request bodies in, prepared requests out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/server/openai_requests.h"

namespace sparrow::openai {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

TEST_F(OpenAiRequests, DefaultsComeFromTheModel) {
  const auto prepared = chat("").value();
  EXPECT_EQ(prepared->request.sampling.temperature, 0.7);
  EXPECT_EQ(prepared->request.sampling.top_p, 0.9);
  EXPECT_EQ(prepared->request.sampling.top_k, 40);
  EXPECT_EQ(prepared->request.n, 1);
  EXPECT_EQ(prepared->request.max_tokens + prepared->num_prompt_tokens(), 4096);
  EXPECT_FALSE(prepared->fields.stream);
  EXPECT_FALSE(prepared->request.logprobs.has_value());
}

TEST_F(OpenAiRequests, NullMeansTheDefault) {
  const auto prepared =
      chat(R"(,"temperature":null,"stop":null,"tools":null,"tool_choice":null,"logprobs":null,"seed":null)")
          .value();
  EXPECT_EQ(prepared->request.sampling.temperature, 0.7);
  EXPECT_TRUE(prepared->fields.stop.empty());
}

TEST_F(OpenAiRequests, FieldsReachTheEngine) {
  const auto prepared =
      chat(R"(,"temperature":0,"top_p":0.5,"top_k":-1,"min_p":0.1,"n":3,"seed":-7,"max_completion_tokens":9,)"
           R"("min_tokens":2,"stop":["a","b"],"stop_token_ids":[5,6],"ignore_eos":true,"priority":-3,)"
           R"("logit_bias":{"7":-100,"8":1.5},"presence_penalty":1,"frequency_penalty":-1,)"
           R"("repetition_penalty":1.1,"logprobs":true,"top_logprobs":4,"cache_salt":"s","user":"u")")
          .value();
  const Request& request = prepared->request;
  EXPECT_EQ(request.sampling.temperature, 0);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.sampling.min_p, 0.1);
  EXPECT_EQ(request.n, 3);
  EXPECT_EQ(prepared->fields.seed, static_cast<uint64_t>(-7));
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_EQ(request.min_tokens, 2);
  EXPECT_THAT(prepared->answer.stop, ElementsAre("a", "b"));
  EXPECT_THAT(request.stop_ids, ElementsAre(5, 6));
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_EQ(request.priority, -3);
  EXPECT_THAT(request.sampling.logit_bias, ElementsAre(std::pair(7, -100.0f), std::pair(8, 1.5f)));
  EXPECT_EQ(request.logprobs, 4);
  EXPECT_EQ(prepared->fields.cache_salt, "s");
}

TEST_F(OpenAiRequests, OneCallAtATimeWhereSeveralAreNotAllowed) {
  EXPECT_FALSE(chat("").value()->answer.single_call);
  EXPECT_FALSE(chat(R"(,"parallel_tool_calls":true)").value()->answer.single_call);
  EXPECT_TRUE(chat(R"(,"parallel_tool_calls":false)").value()->answer.single_call);
}

TEST_F(OpenAiRequests, TheLastMessageIsGoneOnWith) {
  const auto text = [&](const std::string& extra) {
    const auto prepared =
        prepare(kChatApi,
                R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"bcd"}])" +
                    extra + "}",
                model_)
            .value();
    return tokenizer_.decode(prepared->request.prompts[0]).value();
  };
  EXPECT_TRUE(text(R"(,"continue_final_message":true)").ends_with("bcd"));
  EXPECT_FALSE(text("").ends_with("bcd"));
  EXPECT_TRUE(text("").starts_with(text(R"(,"add_generation_prompt":false)")));
  EXPECT_GT(text("").size(), text(R"(,"add_generation_prompt":false)").size());
}

// What clients and their frameworks send along: an answer as it came, empty fields, hints.
TEST_F(OpenAiRequests, MessagesMayCarryWhatChangesNothing) {
  const auto ids = [&](const std::string& user, const std::string& answer, const std::string& tool,
                       const std::string& text) {
    const auto prepared = prepare(
        kChatApi,
        strf(
            R"({{"messages":[{{"role":"user","content":{}{}}},{{"role":"assistant","content":"b","tool_calls":)"
            R"([{{"id":"c","type":"function","function":{{"name":"f","arguments":"{{}}"}}}}]{}}},)"
            R"({{"role":"tool","tool_call_id":"c","content":"d"{}}}]}})",
            text, user, answer, tool),
        model_);
    EXPECT_TRUE(prepared.ok()) << prepared.error().message;
    return prepared.value()->request.prompts[0];
  };
  const auto plain = ids("", "", "", R"("a")");
  const std::string nothing =
      R"(,"refusal":null,"audio":null,"function_call":null,"annotations":[],"parsed":null,"name":null)";
  EXPECT_EQ(ids("", nothing, "", R"("a")"), plain);
  EXPECT_EQ(ids(R"(,"tool_calls":[],"reasoning":"","tool_call_id":"")", R"(,"refusal":"")", "", R"("a")"),
            plain);
  EXPECT_EQ(ids(R"(,"cache_control":{"type":"ephemeral"})", "", R"(,"name":"f")",
                R"([{"type":"text","text":"a","cache_control":{"type":"ephemeral"},"annotations":[]}])"),
            plain);
  EXPECT_EQ(ids("", R"(,"reasoning":"r","reasoning_content":"r")", "", R"("a")"),
            ids("", R"(,"reasoning":"r")", "", R"("a")"));
}

// Who speaks is not part of M3's format: the log says that the name went nowhere. A tool's name it has.
TEST_F(OpenAiRequests, TheNameOfASpeakerIsAWarning) {
  const auto warning = [&](const std::string& role, const std::string& name) {
    const char* const found =
        prepare(
            kChatApi,
            strf(
                R"({{"messages":[{{"role":"{}","content":"x","name":{}}},{{"role":"user","content":"y"}}]}})",
                role, name),
            model_)
            .value()
            ->warning;
    return std::string(found ? found : "");
  };
  EXPECT_EQ(warning("user", R"("Ann")"), "message-name-not-rendered");
  EXPECT_EQ(warning("system", R"("Ann")"), "message-name-not-rendered");
  EXPECT_EQ(warning("user", R"("")"), "");
  EXPECT_EQ(warning("user", "null"), "");
}

// Servers hand it out under both names.
TEST_F(OpenAiRequests, ReasoningComesBackUnderEitherName) {
  const auto ids = [&](const std::string& member) {
    return prepare(kChatApi,
                   R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b")" +
                       member + R"(},{"role":"tool","tool_call_id":"c","content":"d"}]})",
                   model_)
        .value()
        ->request.prompts[0];
  };
  const auto call =
      std::string(R"(,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}])");
  EXPECT_EQ(ids(call + R"(,"reasoning":"why")"), ids(call + R"(,"reasoning_content":"why")"));
  EXPECT_NE(ids(call + R"(,"reasoning":"why")"), ids(call));
}

TEST_F(OpenAiRequests, ImagesAreRefusedAndNotDropped) {
  const auto result = prepare(
      kChatApi,
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"x"}}]}]})",
      model_);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().field, "messages[0].content[1].type");
}

TEST_F(OpenAiRequests, AnUnknownModelIsNotFound) {
  EXPECT_TRUE(chat(R"(,"model":"alias")").ok());
  const auto result = chat(R"(,"model":"gpt")");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, Errc::kNotFound);
}

TEST_F(OpenAiRequests, ABodyThatIsNoObjectIsAnError) {
  for (const char* body : {"", "[]", "5", "{", "{\"messages\":[]}", "{}", "\xff", "{\"a\":NaN}", "nul"})
    EXPECT_FALSE(prepare(kChatApi, body, model_).ok()) << body;
}

TEST_F(OpenAiRequests, APromptLongerThanTheContextIsRefusedWithTheNumbers) {
  model_.defaults.max_model_tokens = 8;
  const auto result = chat("");
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message, HasSubstr("context length is 8 tokens"));
  EXPECT_EQ(result.error().field, "messages");
}

TEST_F(OpenAiRequests, ToolChoiceNoneBansTheCallToken) {
  const char* tools = R"(,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none")";
  const auto prepared = chat(tools).value();
  EXPECT_THAT(prepared->request.sampling.banned_ids, ElementsAre(*tokenizer_.id_of("<tool_call>")));
}

TEST_F(OpenAiRequests, AForcedCallIsAskedOfTheEngineAndNotOfThePrompt) {
  const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"f"}}])";
  const auto free = chat(tools).value();
  EXPECT_FALSE(free->request.constraint);
  for (const char* choice : {R"("required")", R"({"type":"function","function":{"name":"f"}})"}) {
    const auto forced = chat(tools + R"(,"tool_choice":)" + choice).value();
    EXPECT_EQ(forced->request.prompts, free->request.prompts);
    ASSERT_TRUE(forced->request.constraint);
    EXPECT_EQ(forced->answer.single_call, choice[0] == '{');
  }
}

TEST_F(OpenAiRequests, AForcedCallMayBeThoughtAboutAsTheModeSays) {
  const auto first_ids = [&](const std::string& extra) {
    const auto prepared =
        chat(R"(,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required")" + extra)
            .value();
    const auto constraint = prepared->request.constraint->copy();
    const NextIds next = constraint->next_ids();
    EXPECT_EQ(next.end, NextIds::End::kBanned);
    std::vector<int32_t> ids(next.allowed.begin(), next.allowed.end());
    for (int32_t id = 0; id < 400 && !next.mask.empty(); ++id)
      if (next.mask[id / 32] >> (id % 32) & 1) ids.push_back(id);
    return ids;
  };
  const int32_t marker = *tokenizer_.id_of("]<]minimax[>["), open = *tokenizer_.id_of("<mm:think>"),
                close = *tokenizer_.id_of("</mm:think>");
  EXPECT_THAT(first_ids(""), UnorderedElementsAre(open, close, marker));
  EXPECT_THAT(first_ids(R"(,"chat_template_kwargs":{"thinking_mode":"enabled"})"), ElementsAre());
  EXPECT_THAT(first_ids(R"(,"chat_template_kwargs":{"thinking_mode":"disabled"})"), ElementsAre(marker));
}

TEST_F(OpenAiRequests, ThinkingStartsInsideReasoningWhenEnabled) {
  EXPECT_TRUE(chat(R"(,"chat_template_kwargs":{"enable_thinking":true})")
                  .value()
                  ->answer.parser->starts_in_reasoning);
  EXPECT_FALSE(chat(R"(,"reasoning_effort":"none")").value()->answer.parser->starts_in_reasoning);
  EXPECT_FALSE(chat("").value()->answer.parser->starts_in_reasoning);
}

TEST_F(OpenAiRequests, PromptsComeInFourForms) {
  EXPECT_EQ(completion(R"("prompt":"the fox")").value()->request.prompts.size(), 1u);
  EXPECT_EQ(completion(R"("prompt":["a","b"])").value()->request.prompts.size(), 2u);
  EXPECT_THAT(completion(R"("prompt":[1,2,3])").value()->request.prompts, ElementsAre(ElementsAre(1, 2, 3)));
  EXPECT_THAT(completion(R"("prompt":[[1,2],[3]])").value()->request.prompts,
              ElementsAre(ElementsAre(1, 2), ElementsAre(3)));
  EXPECT_EQ(completion(R"("prompt":"a")").value()->request.max_tokens, 16);
}

TEST_F(OpenAiRequests, BadPromptsAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("x":1)", "x"},
      {R"("model":"m3")", "prompt"},
      {R"("prompt":5)", "prompt"},
      {R"("prompt":[])", "prompt"},
      {R"("prompt":"")", "prompt"},
      {R"("prompt":[[]])", "prompt[0]"},
      {R"("prompt":[1,400])", "prompt[1]"},
      {R"("prompt":[1,-1])", "prompt[1]"},
      {R"("prompt":[1,"a"])", "prompt[1]"},
      {R"("prompt":["a",1])", "prompt[1]"},
      {R"("prompt":[1,99999999999])", "prompt[1]"},
      {R"("prompt":"a","echo":1)", "echo"},
      {R"("prompt":"a","suffix":"b")", "suffix"},
      {R"("prompt":"a","logprobs":21)", "logprobs"},
      {R"("prompt":"a","messages":[])", "messages"},
  };
  for (const auto& [fields, field] : cases) {
    const auto result = completion(fields);
    ASSERT_FALSE(result.ok()) << fields;
    EXPECT_EQ(result.error().field, field) << result.error().message;
  }
}

TEST_F(OpenAiRequests, PromptsTimesNIsBounded) {
  std::string prompts = R"("n":128,"prompt":["a")";
  for (int i = 0; i < 40; ++i) prompts += R"(,"a")";
  const auto result = completion(prompts + "]");
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message, HasSubstr("n is 128"));
}

// What costs next to nothing to ask for must not fill the memory.
TEST_F(OpenAiRequests, AnAnswerThatWouldBeTooLargeIsRefusedWithTheNumbers) {
  std::string prompt = R"("prompt":[1)";
  for (int i = 1; i < 3000; ++i) prompt += ",7";
  prompt += "]";
  const auto result = completion(prompt + R"(,"n":128,"echo":true,"logprobs":20,"max_tokens":1)");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().field, "logprobs");
  for (const char* part : {"about 2", "at most 64 MB", "3000 prompt tokens", "n 128", "echo", "logprobs 20"})
    EXPECT_THAT(result.error().message, HasSubstr(part));
  EXPECT_TRUE(completion(prompt + R"(,"n":8,"echo":true,"logprobs":20)").ok());
  EXPECT_TRUE(completion(prompt + R"(,"n":128,"echo":true)").ok());
  EXPECT_FALSE(completion(prompt + R"(,"n":128,"echo":true,"logprobs":20,"stream":true)").ok());
  EXPECT_EQ(completion(prompt + R"(,"n":128,"prompt_logprobs":20)").error().field, "prompt_logprobs");
  model_.defaults.max_answer_bytes = 1 << 20;
  EXPECT_EQ(chat(R"(,"logprobs":true,"top_logprobs":20,"max_tokens":2000)").error().field, "top_logprobs");
  EXPECT_TRUE(chat(R"(,"logprobs":true,"top_logprobs":20,"max_tokens":2000,"stream":true)").ok());
  EXPECT_TRUE(chat(R"(,"n":128,"max_tokens":2000)").ok()) << "plain text counts nothing";
  // Who leaves the length to the server gets what fits.
  const auto prepared = chat(R"(,"logprobs":true,"top_logprobs":20)").value();
  EXPECT_GT(prepared->request.max_tokens, 100);
  EXPECT_LT(prepared->request.max_tokens, 1000);
  EXPECT_LE(prepared->answer_bytes, 1 << 20);
}

TEST_F(OpenAiRequests, TokenizeAndBack) {
  const std::string answer = tokenize(R"({"prompt":"the fox"})", model_).value();
  const JsonDocument document = JsonDocument::parse(answer, "answer").value();
  const Json tokens = document.root().at("tokens").value();
  EXPECT_EQ(document.root().at("count").value().as_int(0, 100).value(), static_cast<int64_t>(tokens.size()));
  std::string ids;
  for (size_t i = 0; i < tokens.size(); ++i) ids += (i ? "," : "") + tokens.element(i).brief();
  EXPECT_EQ(detokenize("{\"tokens\":[" + ids + "]}", model_).value(), R"({"prompt":"the fox"})");
  EXPECT_TRUE(tokenize(R"({"messages":[{"role":"user","content":"hi"}]})", model_).ok());
  EXPECT_EQ(tokenize("{}", model_).error().field, "prompt");
  EXPECT_EQ(detokenize(R"({"tokens":[400]})", model_).error().field, "tokens[0]");
}

}  // namespace
}  // namespace sparrow::openai
