// SPDX-License-Identifier: Apache-2.0
// A chat completion as it was asked for: fields in, prompt text out.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json.h"
#include "base/result.h"
#include "server/openai/fields.h"
#include "text/chat_template.h"
#include "text/output/tool_schema.h"

namespace sparrow::openai {

// Borrows the request's document.
struct ChatRequest {
  enum class ToolChoice { kNone, kAuto, kRequired, kNamed };

  GenerationFields fields;
  Json messages;
  std::optional<Json> tools;  // nullopt: none, or an empty list
  ToolSet tool_set;
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string tool_name;                   // of kNamed
  std::vector<std::string> allowed_tools;  // of kAuto and kRequired; empty: all
  bool parallel_tool_calls = true;
  TemplateOptions options;
  std::optional<int64_t> thinking_budget;  // tokens of a thought
  bool add_generation_prompt = true, continue_final_message = false;

  bool drops_name = false;  // of a speaker: M3's template does not render it; for the log

  bool may_call() const { return tools && tool_choice != ToolChoice::kNone; }
  // The answer must hold a tool call.
  bool forces_call() const {
    return tool_choice == ToolChoice::kRequired || tool_choice == ToolChoice::kNamed;
  }
};

// What /openapi.json says of them.
inline constexpr std::string_view kMessagesSchema =
    R"({"type":"array","minItems":1,"items":{"$ref":"#/components/schemas/Message"}})";
inline constexpr std::string_view kToolsSchema =
    R"({"type":"array","items":{"$ref":"#/components/schemas/Tool"}})";

inline constexpr std::string_view kMediaOptionsSchema =
    R"({"type":"object","properties":{"min_pixels":{"type":"integer"},"max_pixels":{"type":"integer"},)"
    R"("max_long_side_pixel":{"type":"integer"},"fps":{"type":"number"}},"additionalProperties":false})";

// Error at the first thing in the messages, or in the tools, that is not known or would be lost on the way to
// the prompt. What clients send along without a meaning (null, an empty list, a cache hint) is fine.
Status check_messages(const Json& messages);
Status check_tools(const Json& tools);

// The name of one of the tools that were read.
std::string tool_name(const Json& tools, size_t index);

std::span<const Field> chat_fields();  // beside shared_fields()
// The tools that may be called, and what is said about their parameters.
std::vector<CallableTool> callable_tools(const ChatRequest& chat);

Result<ChatRequest> read_chat_request(const Json& body, const Defaults& defaults);

struct ChatPrompt {
  PromptText text;
  bool starts_in_reasoning = false;  // the prompt ends inside a thinking block
  bool may_think = false;            // or leaves it to the model whether there is one
};

Result<ChatPrompt> render_prompt(const ChatRequest& request, const ChatTemplate& chat_template);

}  // namespace sparrow::openai
