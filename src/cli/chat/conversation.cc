// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/conversation.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/files/mapped_file.h"
#include "base/json/json.h"
#include "base/strf.h"
#include "base/text/base64.h"
#include "media/image.h"

namespace sparrow::cli {
namespace {

constexpr size_t kMaxToolsBytes = 4 << 20, kMaxImageBytes = 32 << 20;

void write_parts(JsonWriter& json, const Message& message) {
  json.begin_array();
  for (const std::string& image : message.images) {
    json.begin_object().key("type").string("image_url").key("image_url").begin_object();
    json.key("url").string(image).end_object().end_object();
  }
  json.begin_object().key("type").string("text").key("text").string(message.content).end_object();
  json.end_array();
}

void write_message(JsonWriter& json, const Message& message) {
  json.begin_object().key("role").string(message.role).key("content");
  // An answer that is nothing but calls or reasoning has no content, as the server wrote it.
  const bool has_other = !message.calls.empty() || !message.reasoning.empty();
  if (!message.images.empty()) {
    write_parts(json, message);
  } else {
    message.content.empty() && has_other ? json.null() : json.string(message.content);
  }
  if (!message.reasoning.empty()) json.key("reasoning_content").string(message.reasoning);
  if (!message.tool_call_id.empty()) json.key("tool_call_id").string(message.tool_call_id);
  if (!message.calls.empty()) {
    json.key("tool_calls").begin_array();
    for (const ToolCall& call : message.calls) {
      json.begin_object().key("id").string(call.id).key("type").string("function");
      json.key("function").begin_object().key("name").string(call.name);
      json.key("arguments").string(call.arguments).end_object().end_object();
    }
    json.end_array();
  }
  json.end_object();
}

bool is_whole(const ToolCall& call) {
  const auto arguments = JsonDocument::parse(call.arguments, "arguments");
  return !call.name.empty() && arguments.ok() && arguments->root().is_object();
}

Result<std::string> check_tool(const Json& tool) {
  SPARROW_TRY(tool.expect_object());
  const Json type = SPARROW_TRY(tool.at("type"));
  if (type.string_view() != "function") return type.error("must be \"function\"");
  const Json function = SPARROW_TRY(tool.at("function"));
  SPARROW_TRY(function.expect_object());
  const Json name = SPARROW_TRY(function.at("name"));
  std::string text = SPARROW_TRY(name.as_string());
  if (text.empty()) return name.error("must be a function's name");
  if (const auto parameters = function.find("parameters")) SPARROW_TRY(parameters->expect_object());
  return text;
}

}  // namespace

void Conversation::set_tools(std::string json, std::vector<std::string> names) {
  tools_ = std::move(json);
  tool_names_ = std::move(names);
}

void Conversation::ask(std::string text) {
  if (!messages_.empty() && messages_.back().role == "user") messages_.pop_back();
  messages_.push_back({.role = "user", .content = std::move(text), .images = std::exchange(attached_, {})});
}

void Conversation::answer(Message message) {
  message.role = "assistant";
  std::erase_if(message.calls, [](const ToolCall& call) { return !is_whole(call); });
  messages_.push_back(std::move(message));
}

void Conversation::give_result(const std::string& call_id, std::string text) {
  messages_.push_back({.role = "tool", .content = std::move(text), .tool_call_id = call_id});
}

bool Conversation::take_back_answer() {
  if (!messages_.empty() && messages_.back().role == "assistant") messages_.pop_back();
  return !messages_.empty();
}

void Conversation::write(JsonWriter& json) const {
  if (!tool_names_.empty()) json.key("tools").raw(tools_);
  json.key("messages").begin_array();
  if (!system_.empty()) write_message(json, {.role = "system", .content = system_});
  for (const Message& message : messages_) write_message(json, message);
  json.end_array();
}

Result<std::string> read_image_file(const std::filesystem::path& file) {
  const std::string bytes = SPARROW_TRY(read_text_file(file, kMaxImageBytes));
  const auto header = read_header(std::as_bytes(std::span(bytes)));
  if (!header.ok())
    return Error{Errc::kInvalidArgument, strf("{}: {}", file.string(), header.error().message)};
  std::string type = to_string(header->format);
  std::ranges::transform(type, type.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return strf("data:image/{};base64,{}", type, to_base64(bytes));
}

Result<ToolsFile> read_tools_file(const std::filesystem::path& file) {
  ToolsFile tools{.json = SPARROW_TRY(read_text_file(file, kMaxToolsBytes)), .names = {}};
  const JsonDocument document = SPARROW_TRY(JsonDocument::parse(tools.json, file.string()));
  const Json list = document.root("tools");
  if (!list.is_array() || list.size() == 0)
    return list.error(
        R"(must be a list such as [{"type": "function", "function": {"name": "f", "parameters": {}}}])");
  for (size_t i = 0; i < list.size(); ++i) {
    std::string name = SPARROW_TRY(check_tool(list.element(i)));
    if (std::find(tools.names.begin(), tools.names.end(), name) != tools.names.end())
      return Error{Errc::kInvalidArgument, strf("tools[{}]: a second tool is called {}", i, name)};
    tools.names.push_back(std::move(name));
  }
  return tools;
}

}  // namespace sparrow::cli
