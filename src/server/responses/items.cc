// SPDX-License-Identifier: Apache-2.0
#include "server/responses/items.h"

#include <algorithm>
#include <array>
#include <memory>

#include "base/strf.h"
#include "base/text/base64.h"
#include "server/api/unique.h"
#include "server/fields/field.h"
#include "server/responses/tools.h"

namespace sparrow::responses {
namespace {

// What clients send back of an item without a meaning for the prompt.
constexpr std::array<std::string_view, 6> kMessageFields = {"type", "role",   "content",
                                                            "id",   "status", "phase"};
constexpr std::array<std::string_view, 9> kCallFields = {"type",   "id",     "call_id",   "name", "arguments",
                                                         "status", "caller", "namespace", "async"};
constexpr std::array<std::string_view, 8> kCustomFields = {"type",  "id",     "call_id", "name",
                                                           "input", "status", "caller",  "namespace"};
constexpr std::array<std::string_view, 8> kOutputFields = {"type",   "id",     "call_id", "output",
                                                           "status", "caller", "name",    "namespace"};
constexpr std::array<std::string_view, 6> kReasoningFields = {"type",    "id",     "summary",
                                                              "content", "status", "encrypted_content"};

// Traces of tools that another provider ran: what came of them is in its answers.
constexpr std::array<std::string_view, 5> kTraces = {"web_search_call", "file_search_call",
                                                     "code_interpreter_call", "image_generation_call",
                                                     "mcp_list_tools"};

constexpr std::string_view kPacked = "sparrow:";

// The texts of a list of parts, {"type": ..., "text": ...}.
Result<std::string> joined_text(const Json& list, std::string_view type) {
  SPARROW_TRY(list.expect_array());
  std::string out;
  for (size_t i = 0; i < list.size(); ++i) {
    const Json kind = SPARROW_TRY(list.element(i).at("type"));
    if (kind.string_view() != type) return kind.error(strf("must be {}", type));
    out += SPARROW_TRY(SPARROW_TRY(list.element(i).at("text")).as_string());
  }
  return out;
}

// The thought of an item: its text, else what is packed, else the summary. A thought that another provider
// has encrypted cannot be read; it is no loss, because it was not this model's.
Result<std::string> thought_of(const Json& item) {
  std::string text;
  if (const auto content = item.find("content")) text = SPARROW_TRY(joined_text(*content, "reasoning_text"));
  if (!text.empty()) return text;
  if (const auto packed = item.find("encrypted_content")) {
    const std::string value = SPARROW_TRY(packed->as_string());
    if (value.starts_with(kPacked)) {
      const auto unpacked = decode_base64(std::string_view(value).substr(kPacked.size()), value.size());
      if (!unpacked.ok()) return packed->error("must be as it was received");
      return std::string(reinterpret_cast<const char*>(unpacked.value().data()), unpacked.value().size());
    }
  }
  if (const auto summary = item.find("summary")) text = SPARROW_TRY(joined_text(*summary, "summary_text"));
  return text;
}

void write_text_part(JsonWriter& json, std::string_view type, std::string_view text) {
  json.begin_object().key("type").string(type).key("text").string(text);
  if (type == "output_text") json.key("annotations").begin_array().end_array();
  json.end_object();
}

// An item that was read, with an id and a type, and a content that is a list.
std::string stored_form(const Json& item, const std::string& suffix) {
  const auto type = item.find("type"), id = item.find("id"), role = item.find("role");
  const std::string_view kind = type ? type->string_view() : "message";
  const std::string_view prefix = kind == "message"                      ? "msg"
                                  : kind == "reasoning"                  ? "rs"
                                  : kind.starts_with("custom_tool_call") ? "ctc"
                                                                         : "fc";
  JsonWriter json;
  json.begin_object().key("id").string(id ? std::string(id->string_view()) : strf("{}_{}", prefix, suffix));
  json.key("type").string(kind);
  for (size_t i = 0; i < item.size(); ++i) {
    const std::string_view key = item.key(i);
    const Json value = item.member(i);
    if (key == "id" || key == "type" || value.is_null()) continue;
    json.key(key);
    if (key == "content" && value.is_string()) {
      const bool is_answer = role && role->string_view() == "assistant";
      write_text_part(json.begin_array(), is_answer ? "output_text" : "input_text", value.string_view());
      json.end_array();
    } else {
      write_json(value, json);
    }
  }
  if (!item.find("status") && kind != "reasoning") json.key("status").string("completed");
  return json.end_object().take();
}

// What it says beside its URL: files are not stored here.
Status add_image(const Json& part, ChatMessage& message) {
  static constexpr std::array<std::string_view, 5> kFields = {"type", "image_url", "detail", "file_id",
                                                              "prompt_cache_breakpoint"};
  SPARROW_TRY(check_members(part, kFields, "an input_image"));
  if (const auto file = part.find("file_id"))
    return file->error("is not supported: this server stores no files; use image_url");
  const Json url = SPARROW_TRY(part.at("image_url"));
  message.add_image(part, SPARROW_TRY(url.as_string()), url.path(),
                    SPARROW_TRY(part.string_or("detail", "")));
  return Ok{};
}

}  // namespace

std::string packed_thought(std::string_view text) {
  return std::string(kPacked) + to_base64(text);
}

Status ItemReader::add_input(const Json& input) {
  const std::string unique = new_unique();
  if (input.is_string()) {
    new_message("user", input, input.path()).add_text(input.string_view());
    JsonWriter json;
    json.begin_object().key("id").string(strf("msg_{}_in0", unique)).key("type").string("message");
    json.key("status").string("completed").key("role").string("user").key("content");
    write_text_part(json.begin_array(), "input_text", input.string_view());
    json.end_array().end_object();
    items_.push_back(std::make_shared<const std::string>(json.take()));
    return Ok{};
  }
  if (!input.is_array()) return input.error("must be a string or a list of items");
  for (size_t i = 0; i < input.size(); ++i) {
    const auto type = input.element(i).find("type");
    if (type && type->string_view() == "item_reference") {
      SPARROW_TRY(add_reference(input.element(i)));
      continue;
    }
    SPARROW_TRY(add_item(input.element(i)));
    items_.push_back(
        std::make_shared<const std::string>(stored_form(input.element(i), strf("{}_in{}", unique, i))));
  }
  return Ok{};
}

Status ItemReader::add_stored(const StoredItems& items) {
  for (const auto& item : items) {
    const JsonDocument document = SPARROW_TRY(JsonDocument::parse(*item, "a stored item"));
    SPARROW_TRY(add_item(document.root("previous_response_id")));
    items_.push_back(item);
  }
  return Ok{};
}

Status ItemReader::add_item(const Json& item) {
  SPARROW_TRY(item.expect_object());
  const auto type = item.find("type");
  const std::string_view kind = type ? type->string_view() : "message";
  if (kind == "message") return add_message(item);
  if (kind == "function_call" || kind == "custom_tool_call")
    return add_call(item, kind == "custom_tool_call");
  if (kind == "function_call_output" || kind == "custom_tool_call_output") return add_output(item);
  if (kind == "reasoning") return add_reasoning(item);
  if (std::ranges::find(kTraces, kind) != kTraces.end()) return Ok{};
  return type->error(
      "must be message, function_call, function_call_output, custom_tool_call, custom_tool_call_output, "
      "reasoning or item_reference");
}

// An item's id has its response's in it: msg_X_0 is an item of resp_X.
Status ItemReader::add_reference(const Json& item) {
  static constexpr std::array<std::string_view, 2> kFields = {"type", "id"};
  SPARROW_TRY(check_members(item, kFields, "an item_reference"));
  const Json name = SPARROW_TRY(item.at("id"));
  const std::string id = SPARROW_TRY(name.as_string());
  if (!asker_.store || !asker_.store->enabled())
    return name.error("is not supported: this server stores no responses (--response-memory 0)");
  const size_t begin = id.find('_') + 1, end = id.rfind('_');
  if (begin > 0 && begin < end)
    if (const auto response =
            asker_.store->find(std::string(asker_.tenant), strf("resp_{}", id.substr(begin, end - begin))))
      for (const auto& stored : response->output) {
        const JsonDocument document = SPARROW_TRY(JsonDocument::parse(*stored, "a stored item"));
        if (document.root().find("id")->string_view() == id) return add_stored({stored});
      }
  return name.error("must be the id of an item of a stored answer");
}

ChatMessage& ItemReader::new_message(std::string_view role, const Json& item, std::string content_origin) {
  messages_.push_back({.role = role, .origin = item.path(), .content_origin = std::move(content_origin)});
  return messages_.back();
}

// The answer that an item belongs to: the one before it, or a new one.
ChatMessage& ItemReader::answer_of(const Json& item) {
  if (!messages_.empty() && messages_.back().role == "assistant") return messages_.back();
  return new_message("assistant", item, item.path() + ".content");
}

Status ItemReader::add_message(const Json& item) {
  static constexpr std::array<std::string_view, 4> kRoles = {"user", "assistant", "system", "developer"};
  SPARROW_TRY(check_members(item, kMessageFields, "a message"));
  const Json role = SPARROW_TRY(item.at("role"));
  const auto* const known = std::find(kRoles.begin(), kRoles.end(), role.string_view());
  if (known == kRoles.end()) return role.error("must be user, assistant, system or developer");
  const Json content = SPARROW_TRY(item.at("content"));
  // It belongs to the thought, or to the calls, before it.
  const bool continues = *known == "assistant" && !messages_.empty() &&
                         messages_.back().role == "assistant" &&
                         (messages_.back().parts.empty() || !messages_.back().calls.empty());
  ChatMessage& message = continues ? messages_.back() : new_message(*known, item, item.path() + ".content");
  message.content_origin = content.path();
  return add_parts(content, message);
}

// Text under its three names; what else there may be is for the chat's reader to take or to refuse.
Status ItemReader::add_parts(const Json& content, ChatMessage& message) {
  if (content.is_string()) {
    message.add_text(content.string_view());
    return Ok{};
  }
  if (!content.is_array()) return content.error("must be a string or a list of parts");
  for (size_t i = 0; i < content.size(); ++i) {
    const Json part = content.element(i);
    SPARROW_TRY(part.expect_object());
    const Json type = SPARROW_TRY(part.at("type"));
    const std::string_view kind = type.string_view();
    if (kind == "input_text" || kind == "output_text" || kind == "text") {
      message.add_text(SPARROW_TRY(SPARROW_TRY(part.at("text")).as_string()));
    } else if (kind == "refusal") {
      message.add_text(SPARROW_TRY(SPARROW_TRY(part.at("refusal")).as_string()));
    } else if (kind == "input_image") {
      SPARROW_TRY(add_image(part, message));
    } else {
      return type.error("must be input_text, output_text, refusal or input_image");
    }
  }
  return Ok{};
}

Status ItemReader::add_call(const Json& item, bool is_custom) {
  if (is_custom) {
    SPARROW_TRY(check_members(item, kCustomFields, "a custom tool's call"));
  } else {
    SPARROW_TRY(check_members(item, kCallFields, "a function call"));
  }
  const Json id = SPARROW_TRY(item.at("call_id"));
  ChatCall call{.origin = item.path(), .id_origin = id.path()};
  call.id = SPARROW_TRY(id.as_string());
  call.name = name_in_chat(SPARROW_TRY(item.string_or("namespace", "")),
                           SPARROW_TRY(SPARROW_TRY(item.at("name")).as_string()));
  call.arguments = SPARROW_TRY(SPARROW_TRY(item.at(is_custom ? "input" : "arguments")).as_string());
  if (is_custom) call.arguments = custom_arguments(call.arguments);
  answer_of(item).calls.push_back(std::move(call));
  return Ok{};
}

Status ItemReader::add_output(const Json& item) {
  SPARROW_TRY(check_members(item, kOutputFields, "a function call's output"));
  const Json id = SPARROW_TRY(item.at("call_id"));
  const Json output = SPARROW_TRY(item.at("output"));
  ChatMessage& message = new_message("tool", item, output.path());
  message.call_id = SPARROW_TRY(id.as_string());
  message.call_id_origin = id.path();
  return add_parts(output, message);
}

Status ItemReader::add_reasoning(const Json& item) {
  SPARROW_TRY(check_members(item, kReasoningFields, "a reasoning item"));
  const std::string text = SPARROW_TRY(thought_of(item));
  // A thought begins an answer, unless it goes on with the thought before it.
  const bool continues = !messages_.empty() && messages_.back().role == "assistant" &&
                         messages_.back().parts.empty() && messages_.back().calls.empty();
  ChatMessage& message = continues ? messages_.back() : new_message("assistant", item, item.path());
  message.reasoning += text;
  return Ok{};
}

}  // namespace sparrow::responses
