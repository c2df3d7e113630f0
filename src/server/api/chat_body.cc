// SPDX-License-Identifier: Apache-2.0
#include "server/api/chat_body.h"

#include <algorithm>

#include "base/strf.h"

namespace sparrow {
namespace {

void write_content(JsonWriter& json, const ChatMessage& message) {
  json.key("content");
  if (message.parts.empty() && message.role == "assistant") {
    json.null();
    return;
  }
  json.begin_array();
  for (const std::string& part : message.parts) json.raw(part);
  json.end_array();
}

void write_calls(JsonWriter& json, const std::vector<ChatCall>& calls) {
  json.key("tool_calls").begin_array();
  for (const ChatCall& call : calls) {
    json.begin_object().key("id").string(call.id).key("type").string("function");
    json.key("function").begin_object().key("name").string(call.name);
    json.key("arguments").string(call.arguments).end_object().end_object();
  }
  json.end_array();
}

void write_message(JsonWriter& json, const ChatMessage& message) {
  json.begin_object().key("role").string(message.role);
  write_content(json, message);
  if (!message.reasoning.empty()) json.key("reasoning_content").string(message.reasoning);
  if (!message.calls.empty()) write_calls(json, message.calls);
  if (!message.call_id.empty()) json.key("tool_call_id").string(message.call_id);
  json.end_object();
}

// Whether a path is `prefix` or something in it.
bool is_in(std::string_view path, std::string_view prefix) {
  return path.starts_with(prefix) &&
         (path.size() == prefix.size() || path[prefix.size()] == '.' || path[prefix.size()] == '[');
}

}  // namespace

void ChatMessage::add_text(std::string_view text) {
  JsonWriter json;
  json.begin_object().key("type").string("text").key("text").string(text).end_object();
  parts.push_back(json.take());
}

void ChatMessage::add_image(const Json& image, std::string_view url, std::string url_path,
                            std::string_view detail) {
  JsonWriter json;
  json.begin_object().key("type").string("image_url").key("image_url").begin_object();
  json.key("url").string(url);
  if (!detail.empty()) json.key("detail").string(detail);
  json.end_object().end_object();
  image_origins.push_back({parts.size(), image.path(), std::move(url_path)});
  parts.push_back(json.take());
}

Status ChatBody::copy_rest(const Json& body, std::span<const std::string_view> own,
                           std::span<const OtherName> others) {
  for (size_t i = 0; i < body.size(); ++i) {
    const std::string_view name = body.key(i);
    const Json value = body.member(i);
    if (value.is_null()) continue;
    if (const auto other = std::ranges::find(others, name, &OtherName::name); other != others.end())
      return value.error(strf("is not a field of this request: use {}", other->instead));
    if (std::ranges::find(own, name) == own.end()) write_json(value, json_.key(name));
  }
  return Ok{};
}

JsonWriter& ChatBody::member(std::string_view name, std::string origin) {
  names_.emplace_back(name, std::move(origin));
  return json_.key(name);
}

void ChatBody::name(std::string chat_path, std::string origin) {
  names_.emplace_back(std::move(chat_path), std::move(origin));
}

void ChatBody::add_messages(const std::vector<ChatMessage>& messages) {
  json_.key("messages").begin_array();
  for (size_t i = 0; i < messages.size(); ++i) {
    write_message(json_, messages[i]);
    names_.emplace_back(strf("messages[{}]", i), messages[i].origin);
    names_.emplace_back(strf("messages[{}].content", i), messages[i].content_origin);
    if (!messages[i].call_id.empty())
      names_.emplace_back(strf("messages[{}].tool_call_id", i), messages[i].call_id_origin);
    for (size_t c = 0; c < messages[i].calls.size(); ++c) {
      const std::string chat_path = strf("messages[{}].tool_calls[{}]", i, c);
      names_.emplace_back(chat_path, messages[i].calls[c].origin);
      names_.emplace_back(chat_path + ".id", messages[i].calls[c].id_origin);
    }
    for (const auto& [part, path, url_path] : messages[i].image_origins) {
      const std::string chat_path = strf("messages[{}].content[{}]", i, part);
      names_.emplace_back(chat_path, path);
      names_.emplace_back(chat_path + ".image_url", path);
      names_.emplace_back(chat_path + ".image_url.url", url_path);
    }
  }
  json_.end_array();
}

std::string ChatBody::take() {
  json_.end_object();
  return json_.take();
}

std::string ChatBody::origin_of(const std::string& chat_path) const {
  const std::pair<std::string, std::string>* best = nullptr;
  for (const auto& name : names_)
    if (is_in(chat_path, name.first) && (!best || name.first.size() > best->first.size())) best = &name;
  return best ? best->second + chat_path.substr(best->first.size()) : chat_path;
}

Error ChatBody::translated(Error error) const {
  const std::string field = origin_of(error.field);
  // Messages begin with the path, or have it in the middle.
  if (const size_t at = error.message.find(error.field); at != std::string::npos && field != error.field)
    error.message.replace(at, error.field.size(), field);
  error.field = field;
  return error;
}

std::string json_text(const Json& value) {
  JsonWriter json;
  write_json(value, json);
  return json.take();
}

}  // namespace sparrow
