// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/conversation.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <random>

#include "base/utf8.h"
#include "cli/chat/answer_stream.h"
#include "cli/chat/session.h"
#include "support/temp_dir.h"

namespace sparrow::cli {
namespace {

std::string json_of(const Conversation& conversation) {
  JsonWriter json;
  json.begin_object();
  conversation.write(json);
  json.end_object();
  return json.take();
}

TEST(Conversation, ImagesGoWithTheNextQuestion) {
  Conversation conversation;
  conversation.attach("data:a");
  conversation.attach("data:b");
  conversation.ask("Which?");
  conversation.answer({.role = "assistant", .content = "a"});
  conversation.ask("Sure?");
  EXPECT_EQ(json_of(conversation),
            R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:a"}},)"
            R"({"type":"image_url","image_url":{"url":"data:b"}},{"type":"text","text":"Which?"}]},)"
            R"({"role":"assistant","content":"a"},{"role":"user","content":"Sure?"}]})");
  EXPECT_TRUE(read_image_file(std::string(SPARROW_GOLDEN_DIR) + "/vision/images/one.png")
                  .value()
                  .starts_with("data:image/png;base64,iVBOR"));
  EXPECT_FALSE(read_image_file(std::string(SPARROW_GOLDEN_DIR) + "/README.md").ok());
  EXPECT_FALSE(read_image_file(SPARROW_GOLDEN_DIR).ok());
}

// Opening a pipe that nobody writes to would wait for ever.
TEST(Conversation, TakesRegularFilesOnly) {
  const test::TempDir dir;
  const auto pipe = dir.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_NE(read_image_file(pipe).error().message.find("is not a regular file"), std::string::npos);
  EXPECT_NE(read_tools_file(pipe).error().message.find("is not a regular file"), std::string::npos);
}

TEST(Conversation, SendsCallsAndTheirResultsBack) {
  Conversation conversation;
  conversation.set_system("Be terse.");
  conversation.ask("Weather?");
  conversation.answer({.role = "assistant",
                       .content = "",
                       .reasoning = "hm",
                       .calls = {{"c1", "weather", R"({"city":"Paris"})"}, {"c2", "cut", R"({"city":)"}}});
  conversation.give_result("c1", "rain");
  EXPECT_EQ(json_of(conversation),
            R"({"messages":[{"role":"system","content":"Be terse."},{"role":"user","content":"Weather?"},)"
            R"({"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[{"id":"c1",)"
            R"("type":"function","function":{"name":"weather","arguments":"{\"city\":\"Paris\"}"}}]},)"
            R"({"role":"tool","content":"rain","tool_call_id":"c1"}]})");
}

TEST(Conversation, AQuestionWithoutAnswerIsReplaced) {
  Conversation conversation;
  EXPECT_FALSE(conversation.take_back_answer());
  conversation.ask("one");
  conversation.ask("two");
  conversation.answer({.role = "", .content = "2"});
  EXPECT_EQ(json_of(conversation),
            R"({"messages":[{"role":"user","content":"two"},{"role":"assistant","content":"2"}]})");
  EXPECT_TRUE(conversation.take_back_answer());
  EXPECT_EQ(json_of(conversation), R"({"messages":[{"role":"user","content":"two"}]})");
}

TEST(ToolsFile, IsCheckedByName) {
  const test::TempDir dir;
  const auto read = [&](const char* text) {
    std::ofstream(dir.path() / "t.json") << text;
    return read_tools_file(dir.path() / "t.json");
  };
  const auto message = [&](const char* text) { return read(text).error().message; };
  EXPECT_EQ(read(R"([{"type":"function","function":{"name":"f","parameters":{}}}])").value().names,
            std::vector<std::string>{"f"});
  EXPECT_NE(message("[").find("t.json"), std::string::npos);
  EXPECT_NE(message("{}").find("must be a list"), std::string::npos);
  EXPECT_NE(message("[]").find("must be a list"), std::string::npos);
  EXPECT_NE(message(R"([{"type":"tool"}])").find("tools[0].type"), std::string::npos);
  EXPECT_NE(message(R"([{"type":"function"}])").find("tools[0].function"), std::string::npos);
  EXPECT_NE(message(R"([{"type":"function","function":{"name":7}}])").find("tools[0].function.name"),
            std::string::npos);
  EXPECT_NE(message(R"([{"type":"function","function":{"name":"f","parameters":[]}}])").find("parameters"),
            std::string::npos);
  EXPECT_NE(
      message(R"([{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}])")
          .find("tools[1]"),
      std::string::npos);
  EXPECT_FALSE(read_tools_file(dir.path()).ok());
  EXPECT_FALSE(read_tools_file(dir.path() / "none").ok());
}

TEST(AnswerStream, IsTheSameForEveryCut) {
  const std::string body =
      ": comment\n\n"
      R"(data: {"choices":[{"delta":{"role":"assistant"}}]})"
      "\n\n"
      R"(data: {"choices":[{"delta":{"reasoning":"hm","reasoning_content":"hm"}}]})"
      "\r\n\r\n"
      R"(data:{"choices":[{"delta":{"content":"Größe"}}]})"
      "\n\n"
      R"(data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"name":"f","arguments":"{\"a\""}}]}}]})"
      "\n\n"
      R"(data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}}]})"
      "\n\n"
      R"(data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]})"
      "\n\n"
      R"(data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":3}}})"
      "\n\n"
      "data: [DONE]\n\n";
  for (size_t piece = 1; piece <= body.size(); ++piece) {
    std::string shown;
    AnswerStream stream([&](const AnswerPart& part) { shown += part.text; });
    for (size_t i = 0; i < body.size(); i += piece) stream.feed(std::string_view(body).substr(i, piece));
    stream.finish();
    ASSERT_EQ(stream.message().reasoning, "hm");
    ASSERT_EQ(stream.message().content, "Größe");
    ASSERT_EQ(stream.message().calls.size(), 1u);
    ASSERT_EQ(stream.message().calls[0].id, "c1");
    ASSERT_EQ(stream.message().calls[0].arguments, R"({"a":1})");
    ASSERT_EQ(shown, R"(hmGrößef{"a":1})");
    ASSERT_TRUE(stream.ended());
    ASSERT_EQ(stream.usage()->completion_tokens, 7);
    ASSERT_EQ(stream.usage()->cached_tokens, 3);
    ASSERT_EQ(stream.error(), "");
  }
}

TEST(AnswerStream, KnowsErrorsCutsAndNonsense) {
  const auto after = [](std::string_view body) {
    AnswerStream stream([](const AnswerPart&) {});
    stream.feed(body);
    stream.finish();
    return std::pair(stream.error(), stream.ended());
  };
  EXPECT_EQ(after(R"({"error":{"message":"no"}})"), std::pair(std::string("no"), false));
  EXPECT_EQ(after("{\n \"error\": {\n  \"message\": \"no\"\n }\n}\n").first, "no");
  EXPECT_EQ(after("data: {\"error\":{\"message\":\"late\"}}\n\n").first, "late");
  EXPECT_EQ(after("data: {\"error\":{}}\n\n").first, "the server refused");
  EXPECT_EQ(after("<h1>Bad Gateway</h1>").first, "<h1>Bad Gateway</h1>");
  EXPECT_EQ(after("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"),
            std::pair(std::string(), false));
  EXPECT_NE(after("data: {\"choices\n\n").first.find("not JSON"), std::string::npos);
  EXPECT_EQ(after("data: {\"choices\":{\"a\":1}}\n\n"), std::pair(std::string(), false));
  EXPECT_EQ(after("data: {\"choices\":[{\"delta\":{\"tool_calls\":{\"a\":1}}}]}\n\n"),
            std::pair(std::string(), false));
  EXPECT_EQ(after("data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":-1},{\"index\":99999999}]}}]}\n"
                  "data: {\"choices\":7}\ndata: 7\ndata: {\"usage\":\"x\",\"choices\":[null]}\n"),
            std::pair(std::string(), false));
}

TEST(AnswerStream, SurvivesAnyBytes) {
  const std::string body =
      R"(data: {"choices":[{"delta":{"reasoning":"hm","content":"a","tool_calls":[{"index":0,"id":"c","function":)"
      R"({"name":"f","arguments":"{}"}}]},"finish_reason":null}],"usage":{"prompt_tokens":1}})"
      "\n\ndata: [DONE]\n\n";
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = body + body;
    for (int i = 0; i < 4; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 4 == 0) bytes.erase(random() % bytes.size(), random() % 20);
    AnswerStream stream([](const AnswerPart&) {});
    const size_t cut = random() % bytes.size();
    stream.feed(std::string_view(bytes).substr(0, cut));
    stream.feed(std::string_view(bytes).substr(cut));
    stream.finish();
    ASSERT_EQ(valid_utf8_prefix(stream.message().content), stream.message().content.size());
  }
}

TEST(Commands, AreLinesThatStartWithASlashAndAWord) {
  EXPECT_EQ(split_command("/save  a b.json \n").name, "/save");
  EXPECT_EQ(split_command("/save  a b.json \n").argument, "a b.json");
  EXPECT_EQ(split_command("/quit").name, "/quit");
  for (const char* text : {"", "/", "//quit", "/etc/passwd is what?", "/Quit", " /quit", "hello /quit", "/1"})
    EXPECT_EQ(split_command(text).name, "") << text;
}

}  // namespace
}  // namespace sparrow::cli
