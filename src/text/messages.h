// SPDX-License-Identifier: Apache-2.0
// Requests in OpenAI's form -> what chat templates take. Every error names the field by its path.
#pragma once

#include <optional>
#include <string>

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
};

// Reads a request's chat_template_kwargs. enable_thinking and reasoning_effort "none" also set thinking_mode;
// two that contradict each other are an error, and so is any other key.
Result<TemplateOptions> parse_template_options(const Json& kwargs);

// The messages with tool-call arguments as objects, image_url and video_url parts as image and video, and no
// null members. Borrows text from `messages`.
Result<jinja::Value> to_template_messages(jinja::Heap& heap, const Json& messages);

// The tools as they are, once each is known to be a function with a name.
Result<jinja::Value> to_template_tools(jinja::Heap& heap, const Json& tools);

}  // namespace sparrow
