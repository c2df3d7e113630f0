// SPDX-License-Identifier: Apache-2.0
// The reader: body -> chat.
#include <algorithm>
#include <array>

#include "base/strf.h"
#include "server/anthropic/blocks.h"
#include "server/anthropic/messages.h"
#include "server/fields/field.h"

namespace sparrow::anthropic {
namespace {

// Members that are translated here. All others are the chat's, but for those that this API calls otherwise.
constexpr std::array<std::string_view, 21> kOwnFields = {
    "messages",        "system",        "stop_sequences",
    "tools",           "tool_choice",   "thinking",
    "output_config",   "output_format", "context_management",
    "container",       "mcp_servers",   "cache_control",
    "metadata",        "service_tier",  "inference_geo",
    "user_profile_id", "workspace_id",  "diagnostics",
    "speed",           "betas",         "thread",
};

constexpr std::array kOtherNames = {
    OtherName{"stop", "stop_sequences"},
    OtherName{"max_completion_tokens", "max_tokens"},
    OtherName{"response_format", "output_config.format"},
    OtherName{"reasoning_effort", "thinking"},
    OtherName{"thinking_token_budget", "thinking.budget_tokens"},
    OtherName{"parallel_tool_calls", "tool_choice.disable_parallel_tool_use"},
    OtherName{"functions", "tools"},
    OtherName{"function_call", "tool_choice"},
    OtherName{"n", "one request for each answer"},
    OtherName{"logprobs", "/v1/chat/completions"},
    OtherName{"top_logprobs", "/v1/chat/completions"},
    OtherName{"prompt_logprobs", "/v1/chat/completions"},
    OtherName{"stream_options", "stream"},
    OtherName{"continue_final_message", "a last message of role assistant"},
    OtherName{"add_generation_prompt", "a last message of role assistant"},
};

// Edits of the context: thoughts of earlier turns are left out by the model's own template, so that an edit
// which would remove them changes nothing.
Status check_context(const Json& management) {
  SPARROW_TRY(management.expect_object());
  const auto edits = management.find("edits");
  if (edits) SPARROW_TRY(edits->expect_array());
  for (size_t i = 0; edits && i < edits->size(); ++i) {
    const Json type = SPARROW_TRY(edits->element(i).at("type"));
    if (!type.string_view().starts_with("clear_thinking"))
      return type.error("is not supported: the client decides what stays in the context");
  }
  return Ok{};
}

Status check_refused(const Json& body) {
  for (const char* name : {"container", "mcp_servers"})
    if (const auto field = body.find(name); field && !is_nothing(*field))
      return field->error("is not supported: this server has no tools of its own");
  // Anthropic's own loop over tools asks for it, and goes on without it where it is refused.
  if (const auto thread = body.find("thread"))
    return thread->error("is not supported: conversations are not held here, send all of it");
  if (const auto management = body.find("context_management")) SPARROW_TRY(check_context(*management));
  if (const auto speed = body.find("speed"); speed && speed->string_view() != "standard")
    return speed->error("must be standard: there is one speed");
  if (const auto tier = body.find("service_tier");
      tier && tier->string_view() != "auto" && tier->string_view() != "standard_only")
    return tier->error("must be auto or standard_only: there is one tier");
  static constexpr std::array<std::string_view, 1> kMetadata = {"user_id"};
  if (const auto metadata = body.find("metadata"))
    SPARROW_TRY(check_members(*metadata, kMetadata, "metadata"));
  return Ok{};
}

// {"name": ..., "input_schema": ...} -> {"type": "function", "function": {...}}
Status translate_tools(const Json& tools, ChatBody& chat) {
  static constexpr std::array<std::string_view, 10> kFields = {
      "type",          "name",          "description",     "input_schema",          "strict",
      "cache_control", "defer_loading", "allowed_callers", "eager_input_streaming", "input_examples"};
  SPARROW_TRY(tools.expect_array());
  JsonWriter& json = chat.member("tools", tools.path()).begin_array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json tool = tools.element(i);
    SPARROW_TRY(tool.expect_object());
    if (const auto type = tool.find("type"); type && type->string_view() != "custom")
      return type->error("must be custom: this server has no tools of its own");
    SPARROW_TRY(check_members(tool, kFields, "a tool"));
    const Json schema = SPARROW_TRY(tool.at("input_schema"));
    json.begin_object().key("type").string("function");
    if (const auto defer = tool.find("defer_loading")) write_json(*defer, json.key("defer_loading"));
    json.key("function").begin_object();
    for (const char* name : {"name", "description", "strict"})
      if (const auto member = tool.find(name)) write_json(*member, json.key(name));
    write_json(schema, json.key("parameters"));
    json.end_object().end_object();
    chat.name(strf("tools[{}].function", i), tool.path());
    chat.name(strf("tools[{}].function.parameters", i), schema.path());
  }
  json.end_array();
  return Ok{};
}

Status translate_tool_choice(const Json& choice, ChatBody& chat) {
  static constexpr std::array<std::string_view, 3> kFields = {"type", "name", "disable_parallel_tool_use"};
  SPARROW_TRY(check_members(choice, kFields, "tool_choice"));
  const Json type = SPARROW_TRY(choice.at("type"));
  JsonWriter& json = chat.member("tool_choice", choice.path());
  if (type.string_view() == "tool") {
    const Json name = SPARROW_TRY(choice.at("name"));
    json.begin_object().key("type").string("function").key("function").begin_object();
    write_json(name, json.key("name"));
    json.end_object().end_object();
    chat.name("tool_choice.function", choice.path());
  } else if (type.string_view() == "any") {
    json.string("required");
  } else if (type.string_view() == "auto" || type.string_view() == "none") {
    json.string(type.string_view());
  } else {
    return type.error("must be auto, any, tool or none");
  }
  if (SPARROW_TRY(choice.bool_or("disable_parallel_tool_use", false)))
    chat.member("parallel_tool_calls", choice.path() + ".disable_parallel_tool_use").boolean(false);
  return Ok{};
}

// Who does not ask for thoughts gets none. chat_template_kwargs of the request's own decide where there are
// any.
Status translate_thinking(const Json& body, ChatBody& chat) {
  const auto thinking = body.find("thinking");
  std::string_view mode = "disabled";
  if (thinking) {
    static constexpr std::array<std::string_view, 3> kFields = {"type", "budget_tokens", "display"};
    SPARROW_TRY(check_members(*thinking, kFields, "thinking"));
    const Json type = SPARROW_TRY(thinking->at("type"));
    mode = type.string_view();
    if (mode != "enabled" && mode != "disabled" && mode != "adaptive")
      return type.error("must be enabled, disabled or adaptive");
    if (const auto budget = thinking->find("budget_tokens")) {
      if (mode != "enabled") return budget->error("is only allowed where type is enabled");
      const int64_t tokens = SPARROW_TRY(budget->as_int(1, int64_t{1} << 31));
      if (const auto limit = body.find("max_tokens"); limit && limit->is_number())
        if (tokens >= SPARROW_TRY(limit->as_number()))
          return budget->error(strf("must be below max_tokens, which is {}", limit->brief()));
      chat.member("thinking_token_budget", budget->path()).integer(tokens);
    }
  }
  if (body.find("chat_template_kwargs")) return Ok{};
  JsonWriter& json = chat.member("chat_template_kwargs", "thinking").begin_object();
  json.key("thinking_mode").string(mode).end_object();
  return Ok{};
}

Status translate_format(const Json& format, ChatBody& chat) {
  const Json type = SPARROW_TRY(format.at("type"));
  if (type.string_view() != "json_schema") return type.error("must be json_schema");
  JsonWriter& json = chat.member("response_format", format.path()).begin_object();
  json.key("type").string("json_schema").key("json_schema").begin_object().key("name").string("output");
  write_json(SPARROW_TRY(format.at("schema")), json.key("schema"));
  json.end_object().end_object();
  chat.name("response_format.json_schema", format.path());
  return Ok{};
}

Status translate_output(const Json& body, ChatBody& chat) {
  if (const auto config = body.find("output_config")) {
    static constexpr std::array<std::string_view, 2> kFields = {"effort", "format"};
    SPARROW_TRY(check_members(*config, kFields, "output_config"));
    if (const auto effort = config->find("effort")) SPARROW_TRY(effort->as_string());  // there are no degrees
    if (const auto format = config->find("format")) return translate_format(*format, chat);
  }
  if (const auto format = body.find("output_format")) return translate_format(*format, chat);
  return Ok{};
}

// A last message of the assistant's is the beginning of the answer.
Status translate_messages(const Json& body, ChatBody& chat) {
  std::vector<ChatMessage> messages;
  if (const auto system = body.find("system")) {
    messages.push_back({.role = "system", .origin = "system", .content_origin = "system"});
    messages.back().add_text(SPARROW_TRY(system_text(*system)));
  }
  const Json list = SPARROW_TRY(body.at("messages"));
  SPARROW_TRY(list.expect_array());
  if (list.size() == 0) return list.error("must hold at least one message");
  const auto tools = body.find("tools");
  if (tools) SPARROW_TRY(tools->expect_array());
  for (size_t i = 0; i < list.size(); ++i)
    SPARROW_TRY(add_message(list.element(i), tools ? &*tools : nullptr, messages));
  const ChatMessage& last = messages.back();
  if (last.role == "assistant" && !last.parts.empty() && last.calls.empty())
    chat.member("continue_final_message", last.origin).boolean(true);
  chat.add_messages(messages);
  return Ok{};
}

Status translate(const Json& body, ChatBody& chat) {
  SPARROW_TRY(chat.copy_rest(body, kOwnFields, kOtherNames));
  SPARROW_TRY(check_refused(body));
  SPARROW_TRY(translate_messages(body, chat));
  if (const auto tools = body.find("tools")) SPARROW_TRY(translate_tools(*tools, chat));
  if (const auto choice = body.find("tool_choice")) SPARROW_TRY(translate_tool_choice(*choice, chat));
  SPARROW_TRY(translate_thinking(body, chat));
  SPARROW_TRY(translate_output(body, chat));
  if (const auto stops = body.find("stop_sequences")) {
    SPARROW_TRY(stops->expect_array());
    write_json(*stops, chat.member("stop", stops->path()));
  }
  return Ok{};
}

Status read_body(const Json& root, const openai::Asker& asker, openai::Prepared& prepared) {
  SPARROW_TRY(root.expect_object());
  ChatBody chat;
  SPARROW_TRY(translate(root, chat));
  JsonDocument document =
      SPARROW_TRY(JsonDocument::parse(chat.take(), "the request's body", openai::kTranslatedLimits));
  if (const Status status = openai::kChatApi.read(std::move(document), asker, prepared); !status.ok())
    return chat.translated(status.error());
  for (MediaSource& source : prepared.media)
    for (std::string& field : source.fields) field = chat.origin_of(field);
  prepared.writer = make_writer();
  return Ok{};
}

Status read(JsonDocument body, const openai::Asker& asker, openai::Prepared& prepared) {
  const Json tokens = SPARROW_TRY(body.root().at("max_tokens"));
  SPARROW_TRY(tokens.as_int(1, int64_t{1} << 31));
  return read_body(body.root(), asker, prepared);
}

// To be counted: how long the answer may be is no question then.
Status read_document(JsonDocument body, const openai::Asker& asker, openai::Prepared& prepared) {
  return read_body(body.root(), asker, prepared);
}

Result<std::string> write_count(const openai::Prepared& prepared, const openai::ServedModel&) {
  return JsonWriter()
      .begin_object()
      .key("input_tokens")
      .integer(prepared.num_prompt_tokens())
      .end_object()
      .take();
}

}  // namespace

const openai::Api kMessagesApi{.read = read,
                               .prompt_field = "messages",
                               .max_tokens_field = "max_tokens",
                               .logprobs_field = "logprobs",
                               .logprob_bytes = 110,
                               .prompt_logprobs_once = true};

const openai::Api kCountApi{.read = read_document,
                            .prompt_field = "messages",
                            .max_tokens_field = "max_tokens",
                            .logprobs_field = "logprobs",
                            .logprob_bytes = 0,
                            .prompt_logprobs_once = true,
                            .count = write_count};

}  // namespace sparrow::anthropic
