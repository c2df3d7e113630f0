// SPDX-License-Identifier: Apache-2.0
#include "server/anthropic/blocks.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/strf.h"
#include "server/anthropic/messages.h"
#include "server/fields/field.h"

namespace sparrow::anthropic {
namespace {

// A kind of block and what it may hold beside its type. What clients send along without a meaning for the
// prompt is fine: a cache hint, where every prefix is kept that fits; a signature, which is of a thought that
// is there in full.
struct BlockKind {
  std::string_view type;
  std::array<std::string_view, 6> fields;
  bool of_user, of_assistant;
};
constexpr std::array kKinds = {
    BlockKind{"text", {"text", "cache_control", "citations"}, true, true},
    BlockKind{"image", {"source", "cache_control"}, true, false},
    BlockKind{
        "tool_result", {"tool_use_id", "content", "is_error", "cache_control", "toolset_name"}, true, false},
    BlockKind{"tool_reference", {"tool_name", "cache_control"}, true, false},
    BlockKind{"tool_use", {"id", "name", "input", "cache_control", "caller", "toolset_name"}, false, true},
    BlockKind{"thinking", {"thinking", "signature", "cache_control"}, false, true},
    BlockKind{"redacted_thinking", {"data", "cache_control"}, false, true},
};

Result<const BlockKind*> check_block(const Json& block, bool is_user) {
  SPARROW_TRY(block.expect_object());
  const Json type = SPARROW_TRY(block.at("type"));
  const auto* const kind = std::find_if(kKinds.begin(), kKinds.end(), [&](const BlockKind& it) {
    return it.type == type.string_view() && (is_user ? it.of_user : it.of_assistant);
  });
  if (kind == kKinds.end())
    return type.error(is_user ? "must be text, image, tool_result or tool_reference in a message of role user"
                              : "must be text, thinking, redacted_thinking or tool_use in a message of role "
                                "assistant");
  for (size_t i = 0; i < block.size(); ++i) {
    const std::string_view key = block.key(i);
    const Json value = block.member(i);
    if (key == "type" || value.is_null()) continue;
    if (std::find(kind->fields.begin(), kind->fields.end(), key) == kind->fields.end())
      return value.error(
          strf("is not a field of {} {} block", kind->type == "image" ? "an" : "a", kind->type));
  }
  return kind;
}

// {"source": {"type": "base64", ...}} or {"type": "url", ...} -> a part of a chat.
Status add_image(const Json& block, ChatMessage& message) {
  static constexpr std::array<std::string_view, 2> kUrl = {"type", "url"};
  static constexpr std::array<std::string_view, 3> kBase64 = {"type", "media_type", "data"};
  const Json source = SPARROW_TRY(block.at("source"));
  const Json type = SPARROW_TRY(source.at("type"));
  if (type.string_view() == "url") {
    SPARROW_TRY(check_members(source, kUrl, "a url source"));
    const Json url = SPARROW_TRY(source.at("url"));
    message.add_image(block, SPARROW_TRY(url.as_string()), url.path());
  } else if (type.string_view() == "base64") {
    SPARROW_TRY(check_members(source, kBase64, "a base64 source"));
    const Json data = SPARROW_TRY(source.at("data"));
    const Json media_type = SPARROW_TRY(source.at("media_type"));
    const std::string type_text = SPARROW_TRY(media_type.as_string());
    if (!type_text.starts_with("image/") || type_text.find_first_of(";,") != std::string::npos)
      return media_type.error("must be the type of an image, such as image/png");
    message.add_image(block, strf("data:{};base64,{}", type_text, SPARROW_TRY(data.as_string())),
                      data.path());
  } else {
    return type.error("must be base64 or url");
  }
  return Ok{};
}

Status add_part(const Json& block, ChatMessage& message) {
  if (SPARROW_TRY(block.at("type")).string_view() == "image") {
    SPARROW_TRY(add_image(block, message));
  } else {
    message.add_text(SPARROW_TRY(SPARROW_TRY(block.at("text")).as_string()));
  }
  return Ok{};
}

// A tool that a search has found: what was left out of the prompt is told here. So a prompt goes on as it
// began, whatever is found.
Status add_reference(const Json& block, const Json* tools, ChatMessage& message) {
  const Json name = SPARROW_TRY(block.at("tool_name"));
  for (size_t i = 0; tools && i < tools->size(); ++i) {
    const Json tool = tools->element(i);
    const auto own_name = tool.find("name"), schema = tool.find("input_schema");
    if (!own_name || !schema || own_name->string_view() != name.string_view()) continue;
    JsonWriter json;
    json.begin_object();
    for (const char* member : {"name", "description"})
      if (const auto value = tool.find(member)) write_json(*value, json.key(member));
    write_json(*schema, json.key("parameters"));
    message.add_text(json.end_object().take() + "\n");
    return Ok{};
  }
  return name.error("must be the name of one of the tools");
}

// The model knows of no flag that a result is an error: the words say it.
Status add_result(const Json& block, const Json* tools, std::vector<ChatMessage>& out) {
  ChatMessage message{.role = "tool", .origin = block.path(), .content_origin = block.path() + ".content"};
  const Json id = SPARROW_TRY(block.at("tool_use_id"));
  message.call_id = SPARROW_TRY(id.as_string());
  message.call_id_origin = id.path();
  if (SPARROW_TRY(block.bool_or("is_error", false))) message.add_text("Error: ");
  if (const auto content = block.find("content")) {
    if (content->is_string()) {
      message.add_text(content->string_view());
    } else if (!content->is_array()) {
      return content->error("must be a string or a list of blocks");
    }
    for (size_t i = 0; content->is_array() && i < content->size(); ++i) {
      const Json part = content->element(i);
      const BlockKind* const kind = SPARROW_TRY(check_block(part, true));
      if (kind->type == "tool_result")
        return SPARROW_TRY(part.at("type")).error("must be text, image or tool_reference in a tool's result");
      SPARROW_TRY(kind->type == "tool_reference" ? add_reference(part, tools, message)
                                                 : add_part(part, message));
    }
  }
  out.push_back(std::move(message));
  return Ok{};
}

// A call that we have cut off ourselves comes back as the text that it was.
std::string arguments_of(const Json& input) {
  if (input.size() == 1 && input.key(0) == kInvalidJson && input.member(0).is_string())
    return std::string(input.member(0).string_view());
  return json_text(input);
}

Status add_call(const Json& block, ChatMessage& message) {
  const Json input = SPARROW_TRY(block.at("input"));
  SPARROW_TRY(input.expect_object());
  const Json id = SPARROW_TRY(block.at("id"));
  ChatCall call{.origin = block.path(), .id_origin = id.path()};
  call.id = SPARROW_TRY(id.as_string());
  call.name = SPARROW_TRY(SPARROW_TRY(block.at("name")).as_string());
  call.arguments = arguments_of(input);
  message.calls.push_back(std::move(call));
  return Ok{};
}

Status add_user(const Json& content, const Json* tools, ChatMessage message, std::vector<ChatMessage>& out) {
  for (size_t i = 0; i < content.size(); ++i) {
    const Json block = content.element(i);
    const BlockKind* const kind = SPARROW_TRY(check_block(block, true));
    if (kind->type == "tool_reference")
      return SPARROW_TRY(block.at("type")).error("must stand in a tool's result");
    if (kind->type != "tool_result") {
      SPARROW_TRY(add_part(block, message));
      continue;
    }
    // What was said before a result stays before it.
    if (!message.parts.empty()) out.push_back(message);
    message.parts.clear(), message.image_origins.clear();
    SPARROW_TRY(add_result(block, tools, out));
  }
  if (!message.parts.empty() || content.size() == 0) out.push_back(std::move(message));
  return Ok{};
}

Status add_assistant(const Json& content, ChatMessage message, std::vector<ChatMessage>& out) {
  for (size_t i = 0; i < content.size(); ++i) {
    const Json block = content.element(i);
    const BlockKind* const kind = SPARROW_TRY(check_block(block, false));
    if (kind->type == "thinking") {
      message.reasoning += SPARROW_TRY(SPARROW_TRY(block.at("thinking")).as_string());
    } else if (kind->type == "tool_use") {
      SPARROW_TRY(add_call(block, message));
    } else if (kind->type == "text") {
      SPARROW_TRY(add_part(block, message));
    }  // a thought that another provider has encrypted was not this model's
  }
  out.push_back(std::move(message));
  return Ok{};
}

}  // namespace

Result<std::string> system_text(const Json& system) {
  if (system.is_string()) return system.as_string();
  if (!system.is_array()) return system.error("must be a string or a list of text blocks");
  std::string out;
  for (size_t i = 0; i < system.size(); ++i) {
    const BlockKind* const kind = SPARROW_TRY(check_block(system.element(i), true));
    if (kind->type != "text") return SPARROW_TRY(system.element(i).at("type")).error("must be text");
    if (i > 0) out += "\n\n";
    out += SPARROW_TRY(SPARROW_TRY(system.element(i).at("text")).as_string());
  }
  return out;
}

Status add_message(const Json& message, const Json* tools, std::vector<ChatMessage>& out) {
  SPARROW_TRY(message.expect_object());
  for (size_t i = 0; i < message.size(); ++i)
    if (const std::string_view key = message.key(i);
        key != "role" && key != "content" && !message.member(i).is_null())
      return message.member(i).error("is not a field of a message");
  const Json role = SPARROW_TRY(message.at("role"));
  const Json content = SPARROW_TRY(message.at("content"));
  static constexpr std::array<std::string_view, 3> kRoles = {"user", "assistant", "system"};
  const auto* const known = std::find(kRoles.begin(), kRoles.end(), role.string_view());
  if (known == kRoles.end()) return role.error("must be user, assistant or system");
  ChatMessage made{.role = *known, .origin = message.path(), .content_origin = content.path()};
  if (*known == "system") {
    made.add_text(SPARROW_TRY(system_text(content)));
  } else if (content.is_string()) {
    made.add_text(content.string_view());
  } else if (!content.is_array()) {
    return content.error("must be a string or a list of blocks");
  } else {
    return *known == "user" ? add_user(content, tools, std::move(made), out)
                            : add_assistant(content, std::move(made), out);
  }
  out.push_back(std::move(made));
  return Ok{};
}

}  // namespace sparrow::anthropic
