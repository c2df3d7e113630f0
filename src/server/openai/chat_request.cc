// SPDX-License-Identifier: Apache-2.0
#include "server/openai/chat_request.h"

#include <algorithm>
#include <array>

#include "text/output/output_parser.h"

namespace sparrow::openai {
namespace {

constexpr size_t kMaxMessages = 65536, kMaxTools = 4096, kMaxToolNameBytes = 256;

constexpr std::array<std::string_view, 19> kOwnFields = {
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
    "max_completion_tokens",
    "top_logprobs",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "response_format",
    "modalities",
    "add_generation_prompt",
    "continue_final_message",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "audio",
};

// Fields that ask for something that is not here, whatever their value.
Status check_refused(const Json& body) {
  if (const auto field = body.find("functions")) return field->error("is not supported: use tools");
  if (const auto field = body.find("function_call")) return field->error("is not supported: use tool_choice");
  if (const auto field = body.find("chat_template"))
    return field->error("is not taken from requests: the server was started with its template");
  if (const auto field = body.find("audio")) return field->error("is not supported: answers are text");
  if (const auto modalities = body.find("modalities"))
    if (modalities->size() != 1 || modalities->element(0).string_view() != "text")
      return modalities->error("must be [\"text\"]");
  if (const auto format = body.find("response_format")) {
    const Json type = SPARROW_TRY(format->at("type"));
    if (type.string_view() != "text") return type.error("must be text: other formats are not supported yet");
  }
  return Ok{};
}

// Pictures and sound cannot be read yet, and a prompt without them would be another prompt.
Status check_text_only(const Json& messages) {
  SPARROW_TRY(messages.expect_array());
  if (messages.size() == 0 || messages.size() > kMaxMessages)
    return messages.error(strf("must hold 1 to {} messages", kMaxMessages));
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json message = messages.element(i);
    const auto content = message.find("content");
    if (!content || !content->is_array()) continue;
    for (size_t p = 0; p < content->size(); ++p)
      if (const auto type = content->element(p).find("type"); type && type->is_string())
        if (type->string_view() != "text" && type->string_view() != "refusal")
          return type->error("must be text: images, video and audio are not supported yet");
  }
  return Ok{};
}

// M3's template renders one system message, the first after an optional root.
bool has_late_system_message(const Json& messages) {
  for (size_t i = 1; i < messages.size(); ++i) {
    const auto role = messages.element(i).find("role");
    if (!role || (role->string_view() != "system" && role->string_view() != "developer")) continue;
    const auto before = messages.element(i - 1).find("role");
    if (i > 1 || !before || before->string_view() != "root") return true;
  }
  return false;
}

bool has_tool(const Json& tools, std::string_view name) {
  for (size_t i = 0; i < tools.size(); ++i)
    if (tool_name(tools, i) == name) return true;
  return false;
}

Status read_tools(const Json& body, ChatRequest& request) {
  const auto tools = body.find("tools");
  if (tools) {
    SPARROW_TRY(tools->expect_array());
    if (tools->size() > kMaxTools) return tools->error(strf("must hold at most {} tools", kMaxTools));
    for (size_t i = 0; i < tools->size(); ++i) {
      if (const auto type = tools->element(i).find("type"); type && type->string_view() != "function")
        return type->error("must be function");
      const Json name = SPARROW_TRY(SPARROW_TRY(tools->element(i).at("function")).at("name"));
      const std::string text = SPARROW_TRY(name.as_string());
      // A quote would end the name where the prompt spells it.
      if (text.empty() || text.size() > kMaxToolNameBytes ||
          text.find_first_of("\"<>\n") != std::string::npos)
        return name.error("must be a function's name");
    }
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
    if (type.string_view() != "function") return type.error("must be function");
    const Json name = SPARROW_TRY(SPARROW_TRY(choice->at("function")).at("name"));
    request.tool_name = SPARROW_TRY(name.as_string());
    if (!request.tools || !has_tool(*request.tools, request.tool_name))
      return name.error("must be the name of one of the tools");
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

Status read_thinking(const Json& body, ChatRequest& request) {
  if (const auto kwargs = body.find("chat_template_kwargs"))
    request.options = SPARROW_TRY(parse_template_options(*kwargs));
  const auto effort = body.find("reasoning_effort");
  if (!effort) return Ok{};
  static constexpr std::array<std::string_view, 6> kEfforts = {"none",   "minimal", "low",
                                                               "medium", "high",    "xhigh"};
  const std::string value = SPARROW_TRY(effort->as_string());
  if (std::find(kEfforts.begin(), kEfforts.end(), value) == kEfforts.end())
    return effort->error("must be none, minimal, low, medium, high or xhigh");
  // The model knows no degrees of thinking: every effort but none leaves the mode as it is.
  if (value != "none") return Ok{};
  if (request.options.thinking_mode && request.options.thinking_mode != "disabled")
    return effort->error(strf("contradicts thinking_mode {}", *request.options.thinking_mode));
  request.options.thinking_mode = "disabled";
  return Ok{};
}

Status read_logprobs(const Json& body, const Defaults& defaults, ChatRequest& request) {
  const bool wanted = SPARROW_TRY(body.bool_or("logprobs", false));
  const auto top = body.find("top_logprobs");
  if (top && !wanted) return top->error("needs logprobs: true");
  if (wanted) request.fields.request.logprobs = top ? SPARROW_TRY(read_logprob_count(*top, defaults)) : 0;
  return Ok{};
}

}  // namespace

std::string tool_name(const Json& tools, size_t index) {
  return std::string(tools.element(index).find("function")->find("name")->string_view());
}

Result<ChatRequest> read_chat_request(const Json& body, const Defaults& defaults) {
  GenerationFields fields = SPARROW_TRY(read_generation_fields(body, defaults, kOwnFields));
  SPARROW_TRY(check_refused(body));
  // Not inside the braces: members that are made by then would not be destroyed.
  const Json messages = SPARROW_TRY(body.at("messages"));
  ChatRequest request{.fields = std::move(fields), .messages = messages};
  SPARROW_TRY(check_text_only(request.messages));
  request.drops_system_message = has_late_system_message(request.messages);
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
