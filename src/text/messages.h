// SPDX-License-Identifier: Apache-2.0
// Requests in OpenAI's form -> what chat templates take. Every error names the field by its path.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/json/json.h"
#include "base/result.h"
#include "text/jinja/value/heap.h"

namespace sparrow {

// What a request may hand to the template beyond messages and tools.
struct TemplateOptions {
  std::optional<std::string> thinking_mode = {};  // enabled, disabled or adaptive
  std::optional<bool> enable_thinking = {};
  std::optional<std::string> reasoning_effort = {};
  std::optional<std::string> model_identity = {};
  std::optional<Json> more = {};  // all of them: what is not named above becomes a variable as it is
};

// Reads a request's chat_template_kwargs. enable_thinking and reasoning_effort "none" also set thinking_mode;
// two that contradict each other are an error, and so is the name of what the server itself hands over.
// Points into `kwargs`.
Result<TemplateOptions> parse_template_options(const Json& kwargs);

// A part of a message's content that is text: its type, under the names of several APIs, and the member that
// holds it. A thought becomes the message's reasoning.
struct TextPart {
  std::string_view type, member;
  bool is_thought = false;
};
inline constexpr std::array<TextPart, 6> kTextParts{{{"text", "text"},
                                                     {"input_text", "text"},
                                                     {"output_text", "text"},
                                                     {"refusal", "refusal"},
                                                     {"thinking", "thinking", /*is_thought=*/true},
                                                     {"reasoning", "text", /*is_thought=*/true}}};
const TextPart* find_text_part(std::string_view type);  // nullptr: it is none

// The messages with tool-call arguments as objects, image_url and video_url parts as image and video, and no
// null members. M3's template reads one system or developer message, before all others, and skips the rest:
// leading ones are joined, a later one is read as a user's, together with a user's message beside it. Results
// of calls stand in the calls' order (call_results.h).
// Borrows text from `messages`.
Result<jinja::Value> to_template_messages(jinja::Heap& heap, const Json& messages);

// Messages in the template's own form, as they are: of parts that are an image or a video that word is ours,
// so that the placeholder which a template builds around it is one. Borrows text, too.
Result<jinja::Value> messages_as_they_are(jinja::Heap& heap, const Json& messages);

// The tools as they are, once each is known to be a function with a name; those of these names, or all, but
// for those with `defer_loading`, which a later message tells of.
Result<jinja::Value> to_template_tools(jinja::Heap& heap, const Json& tools,
                                       std::span<const std::string> names = {});

}  // namespace sparrow
