// SPDX-License-Identifier: Apache-2.0
// Renderings recorded from Python's jinja2 (tools/make_jinja_goldens.py), byte for byte.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "base/files/mapped_file.h"
#include "text/chat_template.h"

namespace sparrow {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(SPARROW_GOLDEN_DIR) / "jinja";

// When the answers were recorded: 2024-07-26 13:05:09, a Friday.
std::tm recorded_time() {
  std::tm now{};
  now.tm_year = 124;
  now.tm_mon = 6;
  now.tm_mday = 26;
  now.tm_hour = 13;
  now.tm_min = 5;
  now.tm_sec = 9;
  now.tm_wday = 5;
  now.tm_yday = 207;
  return now;
}

Result<std::string> source_of(const Json& test) {
  if (const auto inline_source = test.find("template")) return inline_source->as_string();
  const std::string file = SPARROW_TRY(SPARROW_TRY(test.at("file")).as_string());
  return read_text_file(kFolder / "templates" / file, 1 << 20);
}

Result<std::string> render(const Json& test) {
  const ChatTemplate parsed = SPARROW_TRY(ChatTemplate::parse(SPARROW_TRY(source_of(test))));
  ChatInput input{.messages = SPARROW_TRY(test.at("messages")), .form = ChatInput::Form::kTemplate};
  input.tools = test.find("tools");
  input.kwargs = test.find("kwargs");
  input.add_generation_prompt = SPARROW_TRY(test.bool_or("add_generation_prompt", true));
  input.now = recorded_time();
  return SPARROW_TRY(parsed.render(input)).text;
}

TEST(JinjaGolden, EveryRenderingEqualsTheOneOfPythonsJinja2) {
  const auto text = read_text_file(kFolder / "cases.json", 16 << 20);
  ASSERT_TRUE(text.ok()) << text.error().message;
  const auto document = JsonDocument::parse(text.value(), "cases.json");
  ASSERT_TRUE(document.ok()) << document.error().message;
  const Json cases = document->root().at("cases").value();
  int prompts = 0, errors = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const Json test = cases.element(i);
    SCOPED_TRACE(test.string_or("name", "").value());
    const Result<std::string> prompt = render(test);
    if (const auto expected = test.find("prompt")) {
      ASSERT_TRUE(prompt.ok()) << prompt.error().message;
      EXPECT_EQ(prompt.value(), expected->as_string().value());
      ++prompts;
    } else {
      EXPECT_FALSE(prompt.ok()) << "jinja2 says: " << test.string_or("error", "").value();
      ++errors;
    }
  }
  EXPECT_GE(prompts, 600);
  EXPECT_GE(errors, 100);
}

}  // namespace
}  // namespace sparrow
