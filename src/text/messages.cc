// SPDX-License-Identifier: Apache-2.0
#include "text/messages.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/strf.h"
#include "text/call_results.h"
#include "text/jinja/value/compare.h"
#include "text/jinja/value/from_json.h"

namespace sparrow {

namespace {

using jinja::Entry;
using jinja::Heap;
using jinja::text_value;
using jinja::Value;

// M3's templates know root beside OpenAI's roles.
constexpr std::array<std::string_view, 6> kRoles{"system", "developer", "user", "assistant", "tool", "root"};

// What a template gets from other fields of a request.
Status check_keys(const Json& kwargs) {
  static constexpr std::array<std::string_view, 4> kTaken{"messages", "tools", "documents",
                                                          "add_generation_prompt"};
  for (size_t i = 0; i < kwargs.size(); ++i)
    if (std::find(kTaken.begin(), kTaken.end(), kwargs.key(i)) != kTaken.end())
      return kwargs.member(i).error("is not taken from here: it is a field of the request");
  return Ok{};
}

// Takes over what an alias says about thinking, unless that contradicts what was said before.
Status set_mode(TemplateOptions& options, std::string mode, const Json& source) {
  if (options.thinking_mode && *options.thinking_mode != mode)
    return source.error(strf("contradicts thinking_mode {}", *options.thinking_mode));
  options.thinking_mode = std::move(mode);
  return Ok{};
}

// Templates build a placeholder's token around this word, which is ours.
Result<Value> medium_type(Heap& heap, std::string_view name) {
  return heap.string(name, jinja::kMarkup);
}

// A part of a message's content.
Result<Value> template_part(Heap& heap, const Json& part) {
  if (part.is_string()) return text_value(part.string_view());
  const std::string type = SPARROW_TRY(SPARROW_TRY(part.at("type")).as_string());
  const auto only_type = [&heap](std::string_view name) -> Result<Value> {
    const Entry entry{text_value("type"), SPARROW_TRY(medium_type(heap, name))};
    return heap.dict(std::span<const Entry>(&entry, 1));
  };
  if (type == "image_url" || type == "input_image" || type == "image") return only_type("image");
  if (type == "video_url" || type == "video") return only_type("video");
  const TextPart* const kind = find_text_part(type);
  if (!kind) return SPARROW_TRY(part.at("type")).error("must be text, image_url, video_url or refusal");
  const Json text = SPARROW_TRY(part.at(kind->member));
  SPARROW_TRY(text.as_string());
  const std::array<Entry, 2> entries{Entry{text_value("type"), text_value("text")},
                                     Entry{text_value("text"), text_value(text.string_view())}};
  return heap.dict(entries);
}

bool is_thought(const Json& part) {
  const auto type = part.find("type");
  const TextPart* const kind = type ? find_text_part(type->string_view()) : nullptr;
  return kind && kind->is_thought;
}

Result<Value> template_content(Heap& heap, const Json& content) {
  if (content.is_string()) return text_value(content.string_view());
  if (!content.is_array()) return content.error("must be a string or a list of parts");
  std::vector<Value> parts;
  for (size_t i = 0; i < content.size(); ++i)
    if (!is_thought(content.element(i)))
      parts.push_back(SPARROW_TRY(template_part(heap, content.element(i))));
  return heap.list(parts);
}

// The text of a thought: a string, or a list of text parts.
Status add_thought(const Json& part, std::string& thoughts) {
  const Json text = SPARROW_TRY(part.at(find_text_part(part.find("type")->string_view())->member));
  if (!text.is_array()) {
    thoughts += SPARROW_TRY(text.as_string());
    return Ok{};
  }
  for (size_t i = 0; i < text.size(); ++i)
    thoughts += SPARROW_TRY(SPARROW_TRY(text.element(i).at("text")).as_string());
  return Ok{};
}

// The thoughts among the parts of an answer, which is the only message that has some.
Result<std::string> thoughts_of(const Json& message) {
  std::string thoughts;
  const auto content = message.find("content");
  for (size_t i = 0; content && content->is_array() && i < content->size(); ++i) {
    const Json part = content->element(i);
    if (!is_thought(part)) continue;
    if (message.find("role")->string_view() != "assistant")
      return part.find("type")->error("is only allowed in a message of role assistant");
    SPARROW_TRY(add_thought(part, thoughts));
  }
  // How some servers hand reasoning out beside its text, and so get it back.
  const auto details = message.find("reasoning_details");
  if (thoughts.empty() && details && !message.find("reasoning") && !message.find("reasoning_content"))
    for (size_t i = 0; details->is_array() && i < details->size(); ++i)
      thoughts += SPARROW_TRY(details->element(i).string_or("text", ""));
  for (const char* name : {"reasoning_content", "reasoning"})
    if (const auto said = message.find(name); said && !thoughts.empty() && said->string_view() != thoughts)
      return said->error("contradicts the thoughts in content");
  return thoughts;
}

// Arguments come as JSON text; clients that send the object itself are understood too. What is no object,
// such as a call that was cut off, stays what it is, a text.
Result<Value> template_arguments(Heap& heap, const Json& arguments) {
  if (arguments.is_object()) return jinja::from_json(heap, arguments);
  const std::string text = SPARROW_TRY(arguments.as_string());
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return heap.dict({});
  const Result<JsonDocument> parsed = JsonDocument::parse(text, arguments.path());
  if (parsed.ok() && parsed->root().is_null()) return heap.dict({});
  if (parsed.ok() && parsed->root().is_object())
    return jinja::owned_from_json(heap, parsed->root(arguments.path()));
  const Entry entry{text_value("arguments"), text_value(arguments.string_view())};
  return heap.dict(std::span<const Entry>(&entry, 1));
}

Result<Value> template_call(Heap& heap, const Json& call) {
  SPARROW_TRY(call.expect_object());
  const Json function = SPARROW_TRY(call.at("function"));
  const Json name = SPARROW_TRY(function.at("name"));
  SPARROW_TRY(name.as_string());
  const std::optional<Json> arguments = function.find("arguments");
  const std::array<Entry, 2> function_entries{
      Entry{text_value("name"), text_value(name.string_view())},
      Entry{text_value("arguments"),
            arguments ? SPARROW_TRY(template_arguments(heap, *arguments)) : SPARROW_TRY(heap.dict({}))}};
  std::vector<Entry> entries;
  for (size_t i = 0; i < call.size(); ++i) {
    const bool is_function = call.key(i) == "function";
    entries.push_back({text_value(call.key(i)), is_function
                                                    ? SPARROW_TRY(heap.dict(function_entries))
                                                    : SPARROW_TRY(jinja::from_json(heap, call.member(i)))});
  }
  return heap.dict(entries);
}

Result<Value> template_calls(Heap& heap, const Json& calls) {
  SPARROW_TRY(calls.expect_array());
  std::vector<Value> out;
  for (size_t i = 0; i < calls.size(); ++i) out.push_back(SPARROW_TRY(template_call(heap, calls.element(i))));
  return heap.list(out);
}

Status check_content(const Json& message, std::string_view role) {
  if (message.find("content")) return Ok{};
  if (role == "assistant" || role == "tool") return Ok{};
  return Error{
      Errc::kInvalidArgument,
      strf("{}.content is missing; only an assistant or a tool message may be without", message.path()),
      message.path() + ".content"};
}

Result<Value> template_message(Heap& heap, const Json& message) {
  SPARROW_TRY(message.expect_object());
  const Json role = SPARROW_TRY(message.at("role"));
  const std::string role_name = SPARROW_TRY(role.as_string());
  if (std::find(kRoles.begin(), kRoles.end(), role_name) == kRoles.end())
    return role.error("must be system, developer, user, assistant, tool or root");
  if (const auto call = message.find("function_call")) return call->error("is not supported; use tool_calls");
  SPARROW_TRY(check_content(message, role_name));
  std::vector<Entry> entries;
  for (size_t i = 0; i < message.size(); ++i) {
    const Json member = message.member(i);
    const std::string_view key = message.key(i);
    // Null is how clients spell "absent"; templates would print it.
    if (member.is_null()) continue;
    if (key == "role") {
      // One of ours, checked above: templates write tokens around it, such as <|user|>.
      entries.push_back({text_value(key), SPARROW_TRY(heap.string(role_name, jinja::kMarkup))});
    } else if (key == "content") {
      entries.push_back({text_value(key), SPARROW_TRY(template_content(heap, member))});
    } else if (key == "tool_calls") {
      entries.push_back({text_value(key), SPARROW_TRY(template_calls(heap, member))});
    } else if (key == "reasoning" && !message.find("reasoning_content")) {
      // The other name under which servers hand out reasoning, and so get it back.
      entries.push_back({text_value("reasoning_content"), SPARROW_TRY(jinja::from_json(heap, member))});
    } else {
      entries.push_back({text_value(key), SPARROW_TRY(jinja::from_json(heap, member))});
    }
  }
  if (!message.find("content")) entries.push_back({text_value("content"), text_value("")});
  if (const std::string thoughts = SPARROW_TRY(thoughts_of(message)); !thoughts.empty())
    entries.push_back({text_value("reasoning_content"), SPARROW_TRY(heap.string(thoughts, jinja::kData))});
  return heap.dict(entries);
}

bool is_instruction(std::string_view role) {
  return role == "system" || role == "developer";
}

std::string_view role_at(std::span<const Json> messages, size_t i) {
  const auto role = messages[i].find("role");
  return role ? role->string_view() : "";
}

// The messages before the conversation: root, then instructions.
size_t num_leading(std::span<const Json> messages) {
  size_t end = role_at(messages, 0) == "root" ? 1 : 0;
  while (end < messages.size() && is_instruction(role_at(messages, end))) ++end;
  return end;
}

// Whether a message is part of the same turn as the one before it.
bool joins_previous(std::span<const Json> messages, size_t i, size_t leading) {
  const bool is_one = is_instruction(role_at(messages, i)),
             was_one = is_instruction(role_at(messages, i - 1));
  if (i < leading) return is_one && was_one;
  if (i == leading) return false;
  const auto is_user = [&](size_t at) { return role_at(messages, at) == "user"; };
  return (is_one || was_one) && (is_one || is_user(i)) && (was_one || is_user(i - 1));
}

// Texts with a blank line between them: a string where all of them are, else a list of parts.
Result<Value> joined_content(Heap& heap, std::span<const Value> contents) {
  const Value blank_line = text_value("\n\n");
  std::vector<Value> parts;
  bool is_text = true;
  for (const Value& content : contents) {
    if (!jinja::is_true(content)) continue;
    if (!parts.empty()) parts.push_back(blank_line);
    is_text &= content.is_string();
    const std::span<const Value> more =
        content.is_string() ? std::span(&content, 1) : std::span<const Value>(content.list->view());
    parts.insert(parts.end(), more.begin(), more.end());
  }
  if (!is_text) return heap.list(parts);
  Value text = text_value("");
  for (const Value& part : parts) text = SPARROW_TRY(heap.joined(text.view(), part.view()));
  return text;
}

// One message of several, in the role of the first, or of a user.
Result<Value> joined_message(Heap& heap, std::span<const Value> messages, bool is_late) {
  std::vector<Value> contents;
  for (const Value& message : messages)
    contents.push_back(*SPARROW_TRY(find_key(heap, *message.dict, text_value("content"))));
  const Value* const role = SPARROW_TRY(find_key(heap, *messages[0].dict, text_value("role")));
  const std::array<Entry, 2> entries{
      Entry{text_value("role"), is_late ? SPARROW_TRY(heap.string("user", jinja::kMarkup)) : *role},
      Entry{text_value("content"), SPARROW_TRY(joined_content(heap, contents))}};
  return heap.dict(entries);
}

// An object as it is, but for what `change` makes of some members: nullopt leaves one alone.
template <typename Change>
Result<Value> object_but(Heap& heap, const Json& object, Change&& change) {
  std::vector<Entry> entries;
  for (size_t i = 0; i < object.size(); ++i) {
    const Json member = object.member(i);
    std::optional<Value> changed = SPARROW_TRY(change(object.key(i), member));
    entries.push_back(
        {text_value(object.key(i)), changed ? *changed : SPARROW_TRY(jinja::from_json(heap, member))});
  }
  return heap.dict(entries);
}

Result<Value> part_as_it_is(Heap& heap, const Json& part) {
  if (!part.is_object()) return jinja::from_json(heap, part);
  return object_but(heap, part, [&](std::string_view key, const Json& value) -> Result<std::optional<Value>> {
    const std::string_view word = value.is_string() ? value.string_view() : "";
    if (key != "type" || (word != "image" && word != "video")) return std::optional<Value>();
    return std::optional(SPARROW_TRY(medium_type(heap, word)));
  });
}

Result<Value> message_as_it_is(Heap& heap, const Json& message) {
  if (!message.is_object()) return jinja::from_json(heap, message);
  return object_but(heap, message,
                    [&](std::string_view key, const Json& value) -> Result<std::optional<Value>> {
                      if (key != "content" || !value.is_array()) return std::optional<Value>();
                      std::vector<Value> parts;
                      for (size_t i = 0; i < value.size(); ++i)
                        parts.push_back(SPARROW_TRY(part_as_it_is(heap, value.element(i))));
                      return std::optional(SPARROW_TRY(heap.list(parts)));
                    });
}

}  // namespace

const TextPart* find_text_part(std::string_view type) {
  const auto* const found = std::find_if(kTextParts.begin(), kTextParts.end(),
                                         [type](const TextPart& part) { return part.type == type; });
  return found == kTextParts.end() ? nullptr : found;
}

Result<TemplateOptions> parse_template_options(const Json& kwargs) {
  static constexpr std::array<std::string_view, 3> kModes{"enabled", "disabled", "adaptive"};
  if (kwargs.is_null()) return TemplateOptions{};
  SPARROW_TRY(kwargs.expect_object());
  SPARROW_TRY(check_keys(kwargs));
  TemplateOptions options{.more = kwargs};
  if (const auto mode = kwargs.find("thinking_mode")) {
    options.thinking_mode = SPARROW_TRY(mode->as_string());
    if (std::find(kModes.begin(), kModes.end(), *options.thinking_mode) == kModes.end())
      return mode->error("must be enabled, disabled or adaptive");
  }
  if (const auto enable = kwargs.find("enable_thinking")) {
    options.enable_thinking = SPARROW_TRY(enable->as_bool());
    SPARROW_TRY(set_mode(options, *options.enable_thinking ? "enabled" : "disabled", *enable));
  }
  if (const auto effort = kwargs.find("reasoning_effort")) {
    options.reasoning_effort = SPARROW_TRY(effort->as_string());
    // The model knows no degrees of thinking: every other effort leaves the mode as it is.
    if (options.reasoning_effort == "none") SPARROW_TRY(set_mode(options, "disabled", *effort));
  }
  if (const auto identity = kwargs.find("model_identity"))
    options.model_identity = SPARROW_TRY(identity->as_string());
  return options;
}

Result<Value> to_template_messages(Heap& heap, const Json& list) {
  SPARROW_TRY(list.expect_array());
  if (list.size() == 0) return list.error("must hold at least one message");
  const std::vector<Json> messages = SPARROW_TRY(in_order_of_calls(list));
  std::vector<Value> out;
  out.reserve(messages.size());
  const size_t leading = num_leading(messages);
  for (size_t i = 0; i < messages.size();) {
    std::vector<Value> turn;
    const bool is_late = i >= leading;
    bool has_instruction = false;
    do {
      if (i > 0 && role_at(messages, i) == "root")
        return messages[i].find("role")->error("must not be root after the first message");
      has_instruction |= is_instruction(role_at(messages, i));
      turn.push_back(SPARROW_TRY(template_message(heap, messages[i])));
    } while (++i < messages.size() && joins_previous(messages, i, leading));
    const bool is_as_it_was = turn.size() == 1 && !(is_late && has_instruction);
    out.push_back(is_as_it_was ? turn[0] : SPARROW_TRY(joined_message(heap, turn, is_late)));
  }
  return heap.list(out);
}

Result<Value> messages_as_they_are(Heap& heap, const Json& messages) {
  if (!messages.is_array()) return jinja::from_json(heap, messages);
  std::vector<Value> out;
  for (size_t i = 0; i < messages.size(); ++i)
    out.push_back(SPARROW_TRY(message_as_it_is(heap, messages.element(i))));
  return heap.list(out);
}

Result<Value> to_template_tools(Heap& heap, const Json& tools, std::span<const std::string> names) {
  SPARROW_TRY(tools.expect_array());
  std::vector<Value> out;
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json tool = tools.element(i);
    const std::string type = SPARROW_TRY(tool.string_or("type", "function"));
    if (type != "function") return SPARROW_TRY(tool.at("type")).error("must be function");
    const Json function = SPARROW_TRY(tool.at("function"));
    const std::string name = SPARROW_TRY(SPARROW_TRY(function.at("name")).as_string());
    if (SPARROW_TRY(tool.bool_or("defer_loading", false))) continue;
    if (names.empty() || std::find(names.begin(), names.end(), name) != names.end())
      out.push_back(SPARROW_TRY(jinja::from_json(heap, tool)));
  }
  return heap.list(out);
}

}  // namespace sparrow
