// SPDX-License-Identifier: Apache-2.0
#include "server/openai/chat_request.h"

#include <algorithm>
#include <array>

#include "base/json/json_writer.h"
#include "server/media/media_parts.h"
#include "text/output/output_parser.h"

namespace sparrow::openai {
namespace {

constexpr size_t kMaxMessages = 65536, kMaxTools = 4096, kMaxToolNameBytes = 256;

using Type = Field::Type;
constexpr Field kOwnFields[] = {
    with_schema("messages", Type::kList, kMessagesSchema),
    with_schema("tools", Type::kList, kToolsSchema),
    with_schema("tool_choice", Type::kAny, R"({"$ref":"#/components/schemas/ToolChoice"})"),
    {"parallel_tool_calls", Type::kBool},
    {"max_completion_tokens", Type::kInteger, 0, 0x1p31},
    {"logprobs", Type::kBool},
    {"top_logprobs", Type::kInteger, 0, kMaxLogprobs},
    {"chat_template_kwargs", Type::kObject},
    // What vLLM calls the options of all images and videos of a request.
    with_schema("mm_processor_kwargs", Type::kObject, kMediaOptionsSchema),
    // The model knows no degrees of thinking: every effort but none leaves the mode as it is.
    one_of("reasoning_effort", "none|minimal|low|medium|high|xhigh|max|auto|default"),
    {"thinking_token_budget", Type::kInteger, 0, 0x1p31},
    // As MiniMax's own API has them.
    with_schema("thinking", Type::kObject,
                R"({"type":"object","required":["type"],"additionalProperties":{"type":"null"},)"
                R"("properties":{"type":{"enum":["enabled","disabled","adaptive","auto"]}}})"),
    only("reasoning_split", true, "reasoning is a field of its own"),
    with_schema("modalities", Type::kList, R"({"const":["text"]})"),
    {"add_generation_prompt", Type::kBool},
    {"continue_final_message", Type::kBool},
    only("echo", false, "messages are not part of the answer"),
    refused("functions", "is not supported: use tools"),
    refused("function_call", "is not supported: use tool_choice"),
    refused("chat_template", "is not taken from requests: the server was started with its template"),
    refused("audio", "is not supported: answers are text"),
};

Status check_formats(const Json& body) {
  if (const auto modalities = body.find("modalities"))
    if (modalities->size() != 1 || modalities->element(0).string_view() != "text")
      return modalities->error("must be [\"text\"]");
  return Ok{};
}

// A cache hint says where a prefix may end; here every prefix is kept that fits.
// A signature is of a thought, by whoever had it; ids are of the client's own records.
constexpr std::array<std::string_view, 3> kPartHints = {"cache_control", "signature", "id"};
constexpr std::array<std::string_view, 4> kCallFields = {"id", "type", "function", "index"};
// Clients that parse arguments send their own reading of them along.
constexpr std::array<std::string_view, 3> kCalledFields = {"name", "arguments", "parsed_arguments"};
// A tool whose loading is deferred may be called, and is not in the prompt: a result tells of it.
constexpr std::array<std::string_view, 4> kToolFields = {"type", "function", "cache_control",
                                                         "defer_loading"};
constexpr std::array<std::string_view, 4> kFunctionFields = {"name", "description", "parameters", "strict"};

Status check_part(const Json& part) {
  if (part.is_string()) return Ok{};
  const Json type = SPARROW_TRY(part.at("type"));
  if (is_media_part(type.string_view())) return Ok{};  // read_media_parts() looks at it
  const TextPart* const kind = find_text_part(type.string_view());
  if (!kind) return type.error("must be text, image_url or video_url");
  for (size_t i = 0; i < part.size(); ++i) {
    const std::string_view key = part.key(i);
    if (key == "type" || key == kind->member || is_nothing(part.member(i))) continue;
    if (std::find(kPartHints.begin(), kPartHints.end(), key) == kPartHints.end())
      return part.member(i).error(strf("is not a field of a {} part", kind->type));
  }
  return Ok{};
}

Status check_calls(const Json& calls) {
  SPARROW_TRY(calls.expect_array());
  for (size_t i = 0; i < calls.size(); ++i) {
    const Json call = calls.element(i);
    SPARROW_TRY(check_members(call, kCallFields, "a tool call"));
    if (const auto type = call.find("type"); type && type->string_view() != "function")
      return type->error("must be function");
    if (const auto id = call.find("id"); id && !id->is_null()) SPARROW_TRY(id->as_string());
    SPARROW_TRY(check_members(SPARROW_TRY(call.at("function")), kCalledFields, "a called function"));
  }
  return Ok{};
}

// The fields of a message beside role and content.
struct MessageField {
  enum class Use {
    kText,     // a string
    kCalls,    // tool calls
    kHint,     // of no consequence
    kNowhere,  // nothing but empty values: they could not be part of the prompt
  };
  std::string_view name, role;  // role: of which messages; empty: of all
  Use use;
  std::string_view expectation = {};  // of kNowhere
};
constexpr std::array kMessageFields = {
    MessageField{"name", "", MessageField::Use::kText},
    MessageField{"tool_calls", "assistant", MessageField::Use::kCalls},
    MessageField{"tool_call_id", "tool", MessageField::Use::kText},
    MessageField{"reasoning", "assistant", MessageField::Use::kText},
    MessageField{"reasoning_content", "assistant", MessageField::Use::kText},
    MessageField{"reasoning_details", "assistant", MessageField::Use::kHint},  // thoughts: see messages.cc
    MessageField{"cache_control", "", MessageField::Use::kHint},
    MessageField{"refusal", "", MessageField::Use::kNowhere, "is not supported: use content"},
    MessageField{"function_call", "", MessageField::Use::kNowhere, "is not supported; use tool_calls"},
    MessageField{"audio", "", MessageField::Use::kNowhere, "is not supported: messages are text"},
    MessageField{"annotations", "", MessageField::Use::kNowhere, "is not supported"},
    MessageField{"parsed", "", MessageField::Use::kNowhere, "is not supported: use content"},
};

Status check_member(const Json& member, std::string_view key, std::string_view role) {
  const auto field = std::find_if(kMessageFields.begin(), kMessageFields.end(),
                                  [key](const MessageField& known) { return known.name == key; });
  if (member.is_null()) return Ok{};
  if (field == kMessageFields.end()) return member.error("is not a field of a message");
  if (is_nothing(member)) return Ok{};
  using Use = MessageField::Use;
  if (!field->role.empty() && field->role != role)
    return member.error(strf("is only allowed in a message of role {}", field->role));
  if (field->use == Use::kNowhere) return member.error(field->expectation);
  if (field->use == Use::kCalls) return check_calls(member);
  if (field->use == Use::kText) SPARROW_TRY(member.as_string());
  return Ok{};
}

Status check_message(const Json& message) {
  SPARROW_TRY(message.expect_object());
  const Json role = SPARROW_TRY(message.at("role"));
  for (size_t i = 0; i < message.size(); ++i) {
    const std::string_view key = message.key(i);
    if (key != "role" && key != "content")
      SPARROW_TRY(check_member(message.member(i), key, role.string_view()));
  }
  // One thought under its two names; two thoughts would leave one out.
  const auto reasoning = message.find("reasoning"), same = message.find("reasoning_content");
  if (reasoning && same && !is_nothing(*reasoning) && reasoning->string_view() != same->string_view())
    return reasoning->error(strf("contradicts {}", same->path()));
  const auto content = message.find("content");
  if (!content || !content->is_array()) return Ok{};
  for (size_t p = 0; p < content->size(); ++p) SPARROW_TRY(check_part(content->element(p)));
  return Ok{};
}

// A tool's result says in its name which function it is of; the prompt shows them in their order.
bool has_named_speaker(const Json& messages) {
  for (size_t i = 0; i < messages.size(); ++i)
    if (const Json message = messages.element(i); message.find("role")->string_view() != "tool")
      if (const auto name = message.find("name"); name && !is_nothing(*name)) return true;
  return false;
}

bool has_tool(const Json& tools, std::string_view name) {
  for (size_t i = 0; i < tools.size(); ++i)
    if (tool_name(tools, i) == name) return true;
  return false;
}

// {"type": "function", "function": {"name": ...}}, of one of the tools.
Result<std::string> read_chosen(const Json& chosen, const ChatRequest& request) {
  static constexpr std::array<std::string_view, 2> kFields = {"type", "function"};
  static constexpr std::array<std::string_view, 1> kNamed = {"name"};
  const Json type = SPARROW_TRY(chosen.at("type"));
  if (type.string_view() != "function") return type.error("must be function or allowed_tools");
  SPARROW_TRY(check_members(chosen, kFields, "tool_choice"));
  const Json function = SPARROW_TRY(chosen.at("function"));
  SPARROW_TRY(check_members(function, kNamed, "tool_choice"));
  const Json name = SPARROW_TRY(function.at("name"));
  std::string text = SPARROW_TRY(name.as_string());
  if (!request.tools || !has_tool(*request.tools, text))
    return name.error("must be the name of one of the tools");
  return text;
}

Status read_allowed_tools(const Json& choice, ChatRequest& request) {
  static constexpr std::array<std::string_view, 2> kFields = {"type", "allowed_tools"};
  static constexpr std::array<std::string_view, 2> kAllowed = {"mode", "tools"};
  SPARROW_TRY(check_members(choice, kFields, "tool_choice"));
  const Json allowed = SPARROW_TRY(choice.at("allowed_tools"));
  SPARROW_TRY(check_members(allowed, kAllowed, "allowed_tools"));
  const Json mode = SPARROW_TRY(allowed.at("mode")), tools = SPARROW_TRY(allowed.at("tools"));
  if (mode.string_view() != "auto" && mode.string_view() != "required")
    return mode.error("must be auto or required");
  if (tools.size() == 0) return tools.error("must be a list of at least one tool");
  SPARROW_TRY(tools.expect_array());
  for (size_t i = 0; i < tools.size(); ++i)
    request.allowed_tools.push_back(SPARROW_TRY(read_chosen(tools.element(i), request)));
  if (mode.string_view() == "required") request.tool_choice = ChatRequest::ToolChoice::kRequired;
  return Ok{};
}

Status read_tools(const Json& body, ChatRequest& request) {
  const auto tools = body.find("tools");
  if (tools) {
    SPARROW_TRY(check_tools(*tools));
    if (tools->size() > 0) {
      request.tools = *tools;
      request.tool_set = SPARROW_TRY(ToolSet::from_json(*tools));
    }
  }
  request.parallel_tool_calls = SPARROW_TRY(body.bool_or("parallel_tool_calls", true));
  const auto choice = body.find("tool_choice");
  if (!choice) return Ok{};
  using Choice = ChatRequest::ToolChoice;
  if (choice->is_object()) {
    const Json type = SPARROW_TRY(choice->at("type"));
    if (type.string_view() == "allowed_tools") return read_allowed_tools(*choice, request);
    request.tool_name = SPARROW_TRY(read_chosen(*choice, request));
    request.tool_choice = Choice::kNamed;
    return Ok{};
  }
  const std::string_view name = choice->string_view();
  if (name != "none" && name != "auto" && name != "required")
    return choice->error("must be none, auto, required or a function");
  if (name == "required" && !request.tools) return choice->error("needs tools");
  request.tool_choice = name == "none" ? Choice::kNone : name == "auto" ? Choice::kAuto : Choice::kRequired;
  return Ok{};
}

Status read_minimax_thinking(const Json& thinking, ChatRequest& request) {
  static constexpr std::array<std::string_view, 1> kFields = {"type"};
  SPARROW_TRY(check_members(thinking, kFields, "thinking"));
  const Json type = SPARROW_TRY(thinking.at("type"));
  const std::string_view name = type.string_view();
  if (name != "enabled" && name != "disabled" && name != "adaptive" && name != "auto")
    return type.error("must be enabled, disabled or adaptive");
  const std::string mode(name == "auto" ? "adaptive" : name);
  if (request.options.thinking_mode && request.options.thinking_mode != mode)
    return type.error(strf("contradicts thinking_mode {}", *request.options.thinking_mode));
  request.options.thinking_mode = mode;
  return Ok{};
}

Status read_thinking(const Json& body, ChatRequest& request) {
  if (const auto kwargs = body.find("chat_template_kwargs"))
    request.options = SPARROW_TRY(parse_template_options(*kwargs));
  if (const auto budget = body.find("thinking_token_budget"))
    request.thinking_budget = SPARROW_TRY(budget->as_int(0, int64_t{1} << 31));
  if (const auto thinking = body.find("thinking")) SPARROW_TRY(read_minimax_thinking(*thinking, request));
  const auto effort = body.find("reasoning_effort");
  if (!effort) return Ok{};
  const std::string value = SPARROW_TRY(effort->as_string());
  if (value != "none") return Ok{};
  if (request.options.thinking_mode && request.options.thinking_mode != "disabled")
    return effort->error(strf("contradicts thinking_mode {}", *request.options.thinking_mode));
  request.options.thinking_mode = "disabled";
  return Ok{};
}

Status read_logprobs(const Json& body, const Defaults& defaults, ChatRequest& request) {
  const bool wanted = SPARROW_TRY(body.bool_or("logprobs", false));
  const auto top = body.find("top_logprobs");
  const int count = top ? SPARROW_TRY(read_logprob_count(*top, defaults)) : 0;
  if (count > 0 && !wanted) return top->error("needs logprobs: true");
  if (wanted) request.fields.request.logprobs = count;
  return Ok{};
}

}  // namespace

Status check_messages(const Json& messages) {
  SPARROW_TRY(messages.expect_array());
  if (messages.size() == 0 || messages.size() > kMaxMessages)
    return messages.error(strf("must hold 1 to {} messages", kMaxMessages));
  for (size_t i = 0; i < messages.size(); ++i) SPARROW_TRY(check_message(messages.element(i)));
  return Ok{};
}

Status check_tools(const Json& tools) {
  SPARROW_TRY(tools.expect_array());
  if (tools.size() > kMaxTools) return tools.error(strf("must hold at most {} tools", kMaxTools));
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json tool = tools.element(i);
    SPARROW_TRY(tool.expect_object());
    if (const auto type = tool.find("type"); type && type->string_view() != "function")
      return type->error("must be function");
    SPARROW_TRY(check_members(tool, kToolFields, "a tool"));
    const Json function = SPARROW_TRY(tool.at("function"));
    SPARROW_TRY(check_members(function, kFunctionFields, "a function"));
    const Json name = SPARROW_TRY(function.at("name"));
    const std::string text = SPARROW_TRY(name.as_string());
    // A quote would end the name where the prompt spells it.
    if (text.empty() || text.size() > kMaxToolNameBytes || text.find_first_of("\"<>\n") != std::string::npos)
      return name.error("must be a function's name");
    SPARROW_TRY(tool.bool_or("defer_loading", false));
    SPARROW_TRY(function.string_or("description", ""));
    SPARROW_TRY(function.bool_or("strict", false));
    if (const auto parameters = function.find("parameters")) SPARROW_TRY(parameters->expect_object());
  }
  return Ok{};
}

std::span<const Field> chat_fields() {
  return kOwnFields;
}

std::string tool_name(const Json& tools, size_t index) {
  return std::string(tools.element(index).find("function")->find("name")->string_view());
}

std::vector<CallableTool> callable_tools(const ChatRequest& chat) {
  std::vector<CallableTool> tools;
  for (size_t i = 0; chat.tools && i < chat.tools->size(); ++i) {
    const std::string name = tool_name(*chat.tools, i);
    const bool chosen = chat.tool_choice == ChatRequest::ToolChoice::kNamed
                            ? name == chat.tool_name
                            : chat.allowed_tools.empty() ||
                                  std::ranges::find(chat.allowed_tools, name) != chat.allowed_tools.end();
    if (!chosen) continue;
    const Json function = *chat.tools->element(i).find("function");
    const auto strict = function.find("strict"), parameters = function.find("parameters");
    JsonWriter json;
    if (parameters) write_json(*parameters, json);
    tools.push_back({.name = name,
                     .parameters = json.take_part(),
                     .field = parameters ? parameters->path() : "tools",
                     .strict = strict && strict->as_bool().ok() && strict->as_bool().value()});
  }
  return tools;
}

Result<ChatRequest> read_chat_request(const Json& body, const Defaults& defaults) {
  GenerationFields fields = SPARROW_TRY(read_generation_fields(body, defaults, kOwnFields));
  SPARROW_TRY(check_formats(body));
  // Not inside the braces: members that are made by then would not be destroyed.
  const Json messages = SPARROW_TRY(body.at("messages"));
  ChatRequest request{.fields = std::move(fields), .messages = messages};
  SPARROW_TRY(check_messages(request.messages));
  request.drops_name = has_named_speaker(request.messages);
  SPARROW_TRY(read_tools(body, request));
  SPARROW_TRY(read_thinking(body, request));
  SPARROW_TRY(read_logprobs(body, defaults, request));
  if (const auto tokens = body.find("max_completion_tokens")) {
    const int64_t limit = SPARROW_TRY(tokens->as_int(0, int64_t{1} << 31));
    if (request.fields.max_tokens && *request.fields.max_tokens != limit)
      return tokens->error(strf("contradicts max_tokens {}", *request.fields.max_tokens));
    request.fields.max_tokens = limit;
  }
  request.continue_final_message = SPARROW_TRY(body.bool_or("continue_final_message", false));
  request.add_generation_prompt =
      SPARROW_TRY(body.bool_or("add_generation_prompt", !request.continue_final_message));
  if (request.continue_final_message && request.add_generation_prompt)
    return SPARROW_TRY(body.at("add_generation_prompt")).error("must be false with continue_final_message");
  return request;
}

Result<ChatPrompt> render_prompt(const ChatRequest& request, const ChatTemplate& chat_template) {
  ChatInput input{.messages = request.messages};
  input.tools = request.tools;
  input.allowed_tools = request.allowed_tools;
  input.options = request.options;
  input.add_generation_prompt = request.add_generation_prompt;
  input.continue_final_message = request.continue_final_message;
  ChatPrompt prompt;
  prompt.text = SPARROW_TRY(chat_template.render(input));
  prompt.starts_in_reasoning = prompt.text.ends_with_markup(kThinkOpen);
  prompt.may_think = prompt.starts_in_reasoning ||
                     (request.add_generation_prompt && !prompt.text.ends_with_markup(kThinkClose));
  return prompt;
}

}  // namespace sparrow::openai
