// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/files/mapped_file.h"
#include "text/synthetic/synthetic_template.h"

namespace sparrow {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

// A request as JSON text, and what the template under test makes of it.
class Chat {
 public:
  explicit Chat(std::string_view request) : document_(JsonDocument::parse(request, "request").value()) {}

  Result<std::string> render(const ChatTemplate& by, ChatInput::Form form = ChatInput::Form::kOpenAi) const {
    const Json request = document_.root();
    ChatInput input{.messages = request.at("messages").value(), .form = form};
    input.tools = request.find("tools");
    if (const auto kwargs = request.find("chat_template_kwargs"))
      input.options = SPARROW_TRY(parse_template_options(*kwargs));
    input.add_generation_prompt = request.bool_or("add_generation_prompt", true).value();
    input.continue_final_message = request.bool_or("continue_final_message", false).value();
    return SPARROW_TRY(by.render(input)).text;
  }

 private:
  JsonDocument document_;
};

ChatTemplate synthetic() {
  return std::move(ChatTemplate::parse(synthetic_chat_template())).value();
}

// Prints what the template is given.
ChatTemplate echo() {
  return std::move(ChatTemplate::parse("{{ messages | tojson }}")).value();
}

std::string render(const ChatTemplate& by, std::string_view request) {
  const Result<std::string> prompt = Chat(request).render(by);
  return prompt.ok() ? prompt.value() : "error: " + prompt.error().message;
}

TEST(Messages, ArgumentsAreParsedAndKeepTheirOrderAndDigits) {
  EXPECT_EQ(
      render(echo(),
             R"({"messages": [{"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type":
      "function", "function": {"name": "f", "arguments": "{\"z\": 18446744073709551615, \"a\": [1.0, null]}"}}]}]})"),
      R"([{"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", )"
      R"("arguments": {"z": 18446744073709551615, "a": [1.0, null]}}}], "content": ""}])");
}

TEST(Messages, EmptyAndNullArgumentsAreAnEmptyObject) {
  for (const std::string_view arguments : {R"("")", R"("null")", R"("{}")", "{}", "null"})
    EXPECT_THAT(render(echo(), std::string(R"({"messages": [{"role": "assistant", "tool_calls": [{"function":
        {"name": "f", "arguments": )") +
                                   std::string(arguments) + "}}]}]}"),
                HasSubstr(R"("arguments": {})"))
        << arguments;
}

TEST(Messages, ArgumentsThatAreNoObjectAreText) {
  const auto with = [](std::string_view arguments) {
    return render(echo(), std::string(R"({"messages": [{"role": "assistant", "tool_calls": [{"function":
        {"name": "f", "arguments": )") +
                              std::string(arguments) + "}}]}]}");
  };
  EXPECT_THAT(with(R"("{\"a\": ")"), HasSubstr(R"("arguments": {"arguments": "{\"a\": "})"));
  EXPECT_THAT(with(R"("[1]")"), HasSubstr(R"("arguments": {"arguments": "[1]"})"));
  EXPECT_THAT(with("7"), HasSubstr("[0].tool_calls[0].function.arguments must be a string, got 7"));
}

TEST(Messages, PartsWithUrlsBecomeImagesAndVideos) {
  EXPECT_EQ(
      render(echo(), R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url":
      "data:,"}}, {"type": "text", "text": "a"}, {"type": "video_url", "video_url": {"url": "x"}}]}]})"),
      R"([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "a"}, {"type": "video"}]}])");
  EXPECT_THAT(
      render(echo(), R"({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]})"),
      HasSubstr(R"([0].content[0].type must be text, image_url, video_url or refusal, got "input_audio")"));
}

TEST(Messages, OnlyAnswersAndResultsMayBeWithoutContent) {
  EXPECT_EQ(render(echo(), R"({"messages": [{"role": "assistant", "content": null, "refusal": null}]})"),
            R"([{"role": "assistant", "content": ""}])");
  EXPECT_THAT(render(echo(), R"({"messages": [{"role": "user", "content": null}]})"),
              HasSubstr("[0].content is missing"));
  EXPECT_THAT(render(echo(), R"({"messages": [{"role": "assistant", "tool_calls": [{"id": "x", "function":
                  {"name": "f"}}]}, {"role": "tool", "tool_call_id": "x"}]})"),
              EndsWith(R"({"role": "tool", "tool_call_id": "x", "content": ""}])"));
}

TEST(Messages, RolesThatTheTemplateWouldSilentlyDropAreErrors) {
  EXPECT_THAT(
      render(echo(), R"({"messages": [{"role": "function", "content": "x"}]})"),
      HasSubstr(R"([0].role must be system, developer, user, assistant, tool or root, got "function")"));
  EXPECT_THAT(render(echo(), R"({"messages": []})"), HasSubstr("must hold at least one message"));
}

TEST(Messages, ReasoningIsReasoningContentUnderAnotherName) {
  EXPECT_EQ(render(echo(), R"({"messages": [{"role": "assistant", "content": "b", "reasoning": "a"}]})"),
            R"([{"role": "assistant", "content": "b", "reasoning_content": "a"}])");
}

TEST(TemplateOptions, AliasesSetTheThinkingMode) {
  const auto mode = [](std::string_view kwargs) {
    const JsonDocument document = JsonDocument::parse(kwargs, "kwargs").value();
    const auto options = parse_template_options(document.root("chat_template_kwargs"));
    return options.ok() ? options->thinking_mode.value_or("unset") : options.error().message;
  };
  EXPECT_EQ(mode("{}"), "unset");
  EXPECT_EQ(mode("null"), "unset");
  EXPECT_EQ(mode(R"({"thinking_mode": null})"), "unset");
  EXPECT_EQ(mode(R"({"thinking_mode": "adaptive"})"), "adaptive");
  EXPECT_EQ(mode(R"({"enable_thinking": true})"), "enabled");
  EXPECT_EQ(mode(R"({"enable_thinking": false})"), "disabled");
  EXPECT_EQ(mode(R"({"reasoning_effort": "none"})"), "disabled");
  EXPECT_EQ(mode(R"({"reasoning_effort": "high"})"), "unset");
  EXPECT_EQ(mode(R"({"thinking_mode": "enabled", "enable_thinking": true})"), "enabled");
  EXPECT_THAT(mode(R"({"thinking_mode": "enabled", "enable_thinking": false})"),
              HasSubstr("chat_template_kwargs.enable_thinking contradicts thinking_mode enabled, got false"));
  EXPECT_THAT(
      mode(R"({"thinking_mode": "on"})"),
      HasSubstr(R"(chat_template_kwargs.thinking_mode must be enabled, disabled or adaptive, got "on")"));
}

TEST(TemplateOptions, AnyOtherKeyIsAVariable) {
  const ChatTemplate shows = ChatTemplate::parse("{{ foo | tojson }} {{ bar is defined }}").value();
  const auto with = [&](std::string_view kwargs) {
    return render(shows, std::string(R"({"messages": [{"role": "user", "content": "x"}], )") +
                             R"("chat_template_kwargs": )" + std::string(kwargs) + "}");
  };
  EXPECT_EQ(with(R"({"foo": [1, "a"], "bar": null})"), R"([1, "a"] False)");
  EXPECT_THAT(with(R"({"messages": []})"), HasSubstr("messages is not taken from here"));
}

TEST(ChatTemplate, ContinuingTheFinalMessageEndsThePromptInsideIt) {
  EXPECT_THAT(
      render(synthetic(), R"({"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content":
      "Once upon "}], "add_generation_prompt": false, "continue_final_message": true})"),
      EndsWith("]~b]ai\n</mm:think>Once upon "));
  EXPECT_THAT(render(synthetic(),
                     R"({"messages": [{"role": "user", "content": "Q"}], "continue_final_message": true})"),
              HasSubstr("excludes add_generation_prompt"));
  EXPECT_THAT(render(echo(), R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}],
      "add_generation_prompt": false, "continue_final_message": true})"),
              HasSubstr("the final message has no text"));
  const ChatTemplate trims = std::move(ChatTemplate::parse("{{ messages[-1].content | trim }}!")).value();
  EXPECT_EQ(
      render(trims, R"({"messages": [{"role": "user", "content": " a \n"}], "add_generation_prompt": false,
      "continue_final_message": true})"),
      "a");
  const ChatTemplate drops = std::move(ChatTemplate::parse("x")).value();
  EXPECT_THAT(
      render(drops, R"({"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": false,
      "continue_final_message": true})"),
      HasSubstr("does not appear in the prompt"));
}

class ChatTemplateFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::path(::testing::TempDir()) /
           ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  void write(const char* name, std::string_view text) const {
    ASSERT_TRUE(write_text_file(dir_ / name, text).ok());
  }
  std::string rendered(std::string_view request) const {
    const auto loaded = ChatTemplate::load(dir_);
    return loaded.ok() ? render(loaded.value(), request) : loaded.error().message;
  }

  std::filesystem::path dir_;
};

constexpr std::string_view kHello = R"({"messages": [{"role": "user", "content": "x"}]})";
constexpr std::string_view kHelloTools =
    R"({"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": {"name": "f"}}]})";

TEST_F(ChatTemplateFolder, TheFileGoesBeforeTheConfigurationAndSeesItsTokens) {
  write("chat_template.jinja", "{{ bos_token }}{{ eos_token }}file\n");
  write("tokenizer_config.json",
        R"({"chat_template": "config", "bos_token": "<b>", "eos_token": {"content": "<e>"}})");
  EXPECT_EQ(rendered(kHello), "<b><e>file");
}

TEST_F(ChatTemplateFolder, TheConfigurationMayHoldNamedTemplates) {
  write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "T"},
      {"name": "default", "template": "D"}, {"name": "rag", "template": "{% bad"}]})");
  EXPECT_EQ(rendered(kHello), "D");
  EXPECT_EQ(rendered(kHelloTools), "T");
}

TEST_F(ChatTemplateFolder, WithoutATemplateTheErrorSaysWhereOneWasLookedFor) {
  EXPECT_THAT(rendered(kHello),
              HasSubstr("neither chat_template.jinja nor chat_template in tokenizer_config.json"));
  write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})");
  EXPECT_THAT(rendered(kHello), HasSubstr("must hold a template called default"));
}

TEST(SyntheticTemplate, HasTheFormatOfM3) {
  const std::string prompt =
      render(synthetic(), R"({"messages": [{"role": "root", "content": "R"}, {"role": "system",
      "content": "S"}, {"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": "Q"}]},
      {"role": "assistant", "content": "Sure.", "reasoning_content": "Need tool", "tool_calls": [{"function": {"name":
      "find_route", "arguments": "{\"stops\": [\"A\", \"B\"], \"opts\": {\"fast\": true, \"n\": 3, \"x\": null}, \"nil\": null, \"e\": []}"}},
      {"function": {"name": "ping", "arguments": "{}"}}]}, {"role": "tool", "content": "r1"}, {"role": "tool",
      "content": [{"type": "text", "text": "r2"}, {"type": "image_url"}]}, {"role": "assistant", "content":
      "<mm:think>\nabc\n</mm:think>\n\nAns"}], "chat_template_kwargs": {"enable_thinking": true}})");
  EXPECT_THAT(prompt, ::testing::StartsWith("]~!b[]~b]system\nR\n\n<thinking_instructions>\n"));
  const std::string ns = "]<]minimax[>[";
  EXPECT_THAT(prompt,
              EndsWith("</thinking_instructions>[e~[\n]~b]developer\nS[e~[\n]~b]user\n]<]image[>[Q[e~[\n"
                       "]~b]ai\n<mm:think>Need tool</mm:think>Sure." +
                       ns + "<tool_call>\n" + ns + "<invoke name=\"find_route\">" + ns + "<stops>" + ns +
                       "<item>A" + ns + "</item>" + ns + "<item>B" + ns + "</item>" + ns + "</stops>" + ns +
                       "<opts>" + ns + "<fast>true" + ns + "</fast>" + ns + "<n>3" + ns + "</n>" + ns +
                       "</opts>" + ns + "<e>" + ns + "</e>" + ns + "</invoke>\n" + ns +
                       "<invoke name=\"ping\">" + ns + "</invoke>\n" + ns + "</tool_call>[e~[\n" +
                       "]~b]tool\n<response>r1</response>\n<response>r2]<]image[>[</response>[e~[\n"
                       "]~b]ai\n<mm:think>abc</mm:think>Ans[e~[\n]~b]ai\n<mm:think>"));
}

TEST(SyntheticTemplate, ListsToolsInTheDeveloperBlock) {
  const std::string prompt = render(synthetic(), kHelloTools);
  EXPECT_THAT(prompt, HasSubstr("\n\n# Tools\n"));
  EXPECT_THAT(prompt, HasSubstr("\n\n<tools>\n<tool>{\"name\": \"f\"}</tool>\n</tools>\n\n"));
  EXPECT_THAT(prompt, EndsWith("]<]minimax[>[</tool_call>[e~[\n]~b]user\nx[e~[\n]~b]ai\n"));
}

TEST(SyntheticTemplate, RefusesAToolResultWithoutACall) {
  const Chat chat(R"({"messages": [{"role": "tool", "content": "x"}]})");
  EXPECT_THAT(chat.render(synthetic(), ChatInput::Form::kTemplate).error().message,
              HasSubstr("must follow an assistant message with tool calls"));
}

}  // namespace
}  // namespace sparrow
