// SPDX-License-Identifier: Apache-2.0
#include "server/responses/tools.h"

#include <algorithm>
#include <array>

#include "base/strf.h"
#include "server/fields/field.h"

namespace sparrow::responses {
namespace {

// Tools that OpenAI runs, or that its models were trained to use without a description.
constexpr std::array<std::string_view, 14> kHosted = {
    "web_search",   "web_search_preview",   "web_search_2025_08_26", "web_search_preview_2025_03_11",
    "file_search",  "code_interpreter",     "image_generation",      "computer",
    "computer_use", "computer_use_preview", "local_shell",           "shell",
    "apply_patch",  "tool_search",
};

bool is_hosted(std::string_view type) {
  return std::ranges::find(kHosted, type) != kHosted.end();
}

constexpr std::string_view kInput = "input";

// {"type": "text"} or {"type": "grammar", "syntax": ..., "definition": ...}. A regex is held to; of another
// grammar the model is told.
struct CustomFormat {
  std::string pattern, told;
};

Result<CustomFormat> read_format(const Json& format) {
  static constexpr std::array<std::string_view, 3> kFields = {"type", "syntax", "definition"};
  SPARROW_TRY(check_members(format, kFields, "format"));
  const Json type = SPARROW_TRY(format.at("type"));
  if (type.string_view() == "text") return CustomFormat{};
  if (type.string_view() != "grammar") return type.error("must be text or grammar");
  const Json syntax = SPARROW_TRY(format.at("syntax"));
  const std::string definition = SPARROW_TRY(SPARROW_TRY(format.at("definition")).as_string());
  if (syntax.string_view() == "regex")
    return CustomFormat{.pattern = strf("^(?:{})$", definition), .told = {}};
  if (syntax.string_view() != "lark") return syntax.error("must be lark or regex");
  return CustomFormat{.pattern = {}, .told = strf("The input follows this grammar (Lark):\n{}", definition)};
}

void write_input_schema(JsonWriter& json, const CustomFormat& format) {
  json.begin_object().key("type").string("object").key("properties").begin_object();
  json.key(kInput).begin_object().key("type").string("string");
  if (!format.pattern.empty()) json.key("pattern").string(format.pattern);
  json.end_object().end_object().key("required").begin_array().string(kInput).end_array();
  json.key("additionalProperties").boolean(false).end_object();
}

void write_named_tool(JsonWriter& json, std::string_view name) {
  json.begin_object().key("type").string("function").key("function").begin_object();
  json.key("name").string(name).end_object().end_object();
}

// {"type": "function" or "custom", "name": ...} of a choice.
Result<std::string> chosen_name(const Json& choice) {
  static constexpr std::array<std::string_view, 3> kFields = {"type", "name", "namespace"};
  SPARROW_TRY(check_members(choice, kFields, "a chosen tool"));
  return name_in_chat(SPARROW_TRY(choice.string_or("namespace", "")),
                      SPARROW_TRY(SPARROW_TRY(choice.at("name")).as_string()));
}

}  // namespace

std::string name_in_chat(std::string_view space, std::string_view name) {
  return space.empty() ? std::string(name) : strf("{}__{}", space, name);
}

std::string custom_arguments(std::string_view input) {
  return JsonWriter().begin_object().key(kInput).string(input).end_object().take();
}

std::string custom_input(const std::string& arguments) {
  const auto document = JsonDocument::parse(arguments, "arguments");
  if (!document.ok()) return arguments;
  const auto input = document.value().root().find(kInput);
  return input && input->is_string() ? std::string(input->string_view()) : arguments;
}

ToolTable::Tool ToolTable::find(const std::string& name) const {
  const auto found = tools_.find(name);
  return found == tools_.end() ? Tool{.name = name} : found->second;
}

Status ToolTable::add(const Json& tool, std::string_view space, std::string_view preface, ChatBody& chat,
                      JsonWriter& json) {
  static constexpr std::array<std::string_view, 9> kFunction = {
      "type",          "name",          "description",     "parameters",   "strict",
      "defer_loading", "cache_control", "allowed_callers", "output_schema"};
  static constexpr std::array<std::string_view, 7> kCustom = {
      "type", "name", "description", "format", "defer_loading", "cache_control", "allowed_callers"};
  const bool is_custom = SPARROW_TRY(tool.at("type")).string_view() == "custom";
  if (is_custom) {
    SPARROW_TRY(check_members(tool, kCustom, "a custom tool"));
  } else {
    SPARROW_TRY(check_members(tool, kFunction, "a function"));
  }
  const std::string name = SPARROW_TRY(SPARROW_TRY(tool.at("name")).as_string());
  std::string description = SPARROW_TRY(tool.string_or("description", ""));
  const auto join = [&](std::string_view text, bool is_first) {
    if (text.empty()) return;
    const std::string_view gap = description.empty() ? "" : "\n\n";
    description = is_first ? strf("{}{}{}", text, gap, description) : strf("{}{}{}", description, gap, text);
  };
  join(preface, true);
  CustomFormat format;
  if (const auto given = tool.find("format"); given && is_custom) format = SPARROW_TRY(read_format(*given));
  join(format.told, false);

  const std::string called = name_in_chat(space, name);
  json.begin_object().key("type").string("function").key("function").begin_object();
  json.key("name").string(called);
  if (!description.empty()) json.key("description").string(description);
  if (is_custom) {
    write_input_schema(json.key("parameters"), format);
    json.key("strict").boolean(true);
  } else {
    for (const char* member : {"parameters", "strict"})
      if (const auto value = tool.find(member)) write_json(*value, json.key(member));
  }
  json.end_object().end_object();
  chat.name(strf("tools[{}].function", num_functions_++), tool.path());
  if (is_custom || !space.empty())
    tools_[called] = {.name = name, .space = std::string(space), .is_custom = is_custom};
  return Ok{};
}

// {"type": "namespace", "name": ..., "description": ..., "tools": [...]}: what is said of all of them stands
// with the first.
Status ToolTable::add_space(const Json& space, ChatBody& chat, JsonWriter& json) {
  static constexpr std::array<std::string_view, 5> kFields = {"type", "name", "description", "tools",
                                                              "defer_loading"};
  SPARROW_TRY(check_members(space, kFields, "a namespace"));
  const std::string name = SPARROW_TRY(SPARROW_TRY(space.at("name")).as_string());
  std::string preface = SPARROW_TRY(space.string_or("description", ""));
  const Json tools = SPARROW_TRY(space.at("tools"));
  SPARROW_TRY(tools.expect_array());
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json tool = tools.element(i);
    SPARROW_TRY(tool.expect_object());
    const Json type = SPARROW_TRY(tool.at("type"));
    if (type.string_view() != "function" && type.string_view() != "custom")
      return type.error("must be function or custom in a namespace");
    SPARROW_TRY(add(tool, name, preface, chat, json));
    preface.clear();
  }
  return Ok{};
}

Status ToolTable::translate(const Json& tools, ChatBody& chat) {
  SPARROW_TRY(tools.expect_array());
  JsonWriter& json = chat.member("tools", tools.path()).begin_array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json tool = tools.element(i);
    SPARROW_TRY(tool.expect_object());
    const Json type = SPARROW_TRY(tool.at("type"));
    const std::string_view kind = type.string_view();
    if (kind == "function" || kind == "custom") {
      SPARROW_TRY(add(tool, "", "", chat, json));
    } else if (kind == "namespace") {
      SPARROW_TRY(add_space(tool, chat, json));
    } else if (is_hosted(kind)) {
      has_left_out_ = true;
    } else {
      return type.error("must be function, custom or namespace: this server has no tools of its own");
    }
  }
  json.end_array();
  return Ok{};
}

Status translate_tool_choice(const Json& choice, ChatBody& chat) {
  if (!choice.is_object()) {
    write_json(choice, chat.member("tool_choice", choice.path()));
    return Ok{};
  }
  const Json type = SPARROW_TRY(choice.at("type"));
  if (type.string_view() == "function" || type.string_view() == "custom") {
    const std::string name = SPARROW_TRY(chosen_name(choice));
    write_named_tool(chat.member("tool_choice", choice.path()), name);
    chat.name("tool_choice.function", choice.path());
    return Ok{};
  }
  if (type.string_view() != "allowed_tools") return type.error("must be function, custom or allowed_tools");
  static constexpr std::array<std::string_view, 3> kFields = {"type", "mode", "tools"};
  SPARROW_TRY(check_members(choice, kFields, "tool_choice"));
  const Json tools = SPARROW_TRY(choice.at("tools"));
  SPARROW_TRY(tools.expect_array());
  JsonWriter& json = chat.member("tool_choice", choice.path()).begin_object();
  json.key("type").string("allowed_tools").key("allowed_tools").begin_object();
  chat.name("tool_choice.allowed_tools", choice.path());
  write_json(SPARROW_TRY(choice.at("mode")), json.key("mode"));
  json.key("tools").begin_array();
  size_t count = 0;
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json tool = tools.element(i);
    if (is_hosted(SPARROW_TRY(tool.string_or("type", "")))) continue;
    write_named_tool(json, SPARROW_TRY(chosen_name(tool)));
    chat.name(strf("tool_choice.allowed_tools.tools[{}].function", count++), tool.path());
  }
  json.end_array().end_object().end_object();
  return Ok{};
}

}  // namespace sparrow::responses
