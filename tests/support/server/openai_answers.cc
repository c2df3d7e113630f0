// SPDX-License-Identifier: Apache-2.0
#include "support/server/openai_answers.h"

#include <gtest/gtest.h>

#include <array>
#include <ostream>
#include <set>

namespace sparrow::test {
namespace {

std::string text_or_empty(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  return found ? json_text(*found) : "";
}

// Text, or nothing where the member is absent or null.
std::string string_of(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  return found ? std::string(found->string_view()) : "";
}

void add_logprobs(const Json& logprobs, ReadChoice& choice) {
  if (const auto content = logprobs.find("content")) {
    for (size_t i = 0; i < content->size(); ++i) choice.logprobs.push_back(json_text(content->element(i)));
    return;
  }
  // Of text completions: four lists of the same length.
  static constexpr std::array kLists = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
  const size_t count = logprobs.at(kLists[0]).value().size();
  for (size_t i = 0; i < count; ++i) {
    std::string entry;
    for (const char* name : kLists) {
      const Json list = logprobs.at(name).value();
      ASSERT_EQ(list.size(), count) << name;
      entry += json_text(list.element(i)) + ' ';
    }
    choice.logprobs.push_back(std::move(entry));
  }
}

// What whole messages and deltas have in common.
void add_message(const Json& message, ReadChoice& choice) {
  choice.reasoning += string_of(message, "reasoning");
  choice.content += string_of(message, "content");
  EXPECT_EQ(string_of(message, "reasoning"), string_of(message, "reasoning_content"));
  const auto calls = message.find("tool_calls");
  if (!calls) return;
  for (size_t i = 0; i < calls->size(); ++i) {
    const Json call = calls->element(i), function = call.at("function").value();
    const auto index = static_cast<size_t>(
        call.int_or("index", static_cast<int64_t>(i), 0, static_cast<int64_t>(choice.calls.size())).value());
    if (index == choice.calls.size()) {
      choice.calls.push_back({.id = string_of(call, "id"), .name = string_of(function, "name")});
      EXPECT_NE(choice.calls.back().id, "");
      EXPECT_NE(choice.calls.back().name, "");
    }
    choice.calls[index].arguments += string_of(function, "arguments");
  }
}

void add_choice(const Json& json, ReadChoice& choice) {
  choice.content += string_of(json, "text");
  if (const auto logprobs = json.find("logprobs")) add_logprobs(*logprobs, choice);
  choice.finish_reason += string_of(json, "finish_reason");
  choice.stop_reason += text_or_empty(json, "stop_reason");
}

int64_t index_of(const Json& choice) {
  return choice.at("index").value().as_int(0, 1 << 20).value();
}

}  // namespace

std::string json_text(const Json& value) {
  const bool is_object = value.is_object();
  if (!is_object && !value.is_array())
    return value.is_string() ? json_quoted(value.string_view()) : value.brief();
  std::string out;
  for (size_t i = 0; i < value.size(); ++i) {
    if (i > 0) out += ',';
    if (is_object) out += json_quoted(value.key(i)) + ':';
    out += json_text(is_object ? value.member(i) : value.element(i));
  }
  return is_object ? '{' + out + '}' : '[' + out + ']';
}

void PrintTo(const ReadAnswer& answer, std::ostream* out) {
  for (const auto& [index, choice] : answer.choices) {
    *out << "\n  " << index << " reasoning " << json_quoted(choice.reasoning) << " content "
         << json_quoted(choice.content);
    for (const ReadCall& call : choice.calls)
      *out << " call " << call.id << ' ' << json_quoted(call.name) << ' ' << call.arguments;
    *out << " finish " << choice.finish_reason << " stop " << choice.stop_reason << " logprobs of "
         << choice.logprobs.size();
  }
  *out << "\n  usage " << answer.usage;
}

ReadAnswer read_whole(std::string_view body) {
  ReadAnswer answer;
  const auto document = JsonDocument::parse(body, "the answer");
  EXPECT_TRUE(document.ok()) << body.substr(0, 200);
  if (!document.ok()) return answer;
  const Json root = document->root(), choices = root.at("choices").value();
  for (size_t i = 0; i < choices.size(); ++i) {
    const Json json = choices.element(i);
    ReadChoice& choice = answer.choices[index_of(json)];
    if (const auto message = json.find("message")) add_message(*message, choice);
    add_choice(json, choice);
  }
  answer.usage = text_or_empty(root, "usage");
  return answer;
}

ReadAnswer read_stream(std::string_view events) {
  ReadAnswer answer;
  std::set<int64_t> roles;
  for (size_t at = 0, end; (end = events.find("\n\n", at)) != events.npos; at = end + 2) {
    const std::string_view line = events.substr(at, end - at);
    if (line.starts_with(':') || line == "data: [DONE]") continue;
    const auto document = JsonDocument::parse(line.substr(line.find('{')), "a chunk");
    EXPECT_TRUE(document.ok()) << line;
    if (!document.ok()) continue;
    const Json root = document->root();
    EXPECT_FALSE(root.find("error")) << line;
    if (const auto usage = root.find("usage")) answer.usage = json_text(*usage);
    const auto choices = root.find("choices");
    for (size_t i = 0; choices && i < choices->size(); ++i) {
      const Json json = choices->element(i);
      const int64_t index = index_of(json);
      ReadChoice& choice = answer.choices[index];
      EXPECT_EQ(choice.finish_reason, "") << "nothing follows the end: " << line;
      if (const auto delta = json.find("delta")) {
        const bool says_role = delta->find("role").has_value();
        EXPECT_EQ(says_role, roles.insert(index).second) << line;
        add_message(*delta, choice);
      }
      add_choice(json, choice);
    }
  }
  return answer;
}

}  // namespace sparrow::test
