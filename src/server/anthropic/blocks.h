// SPDX-License-Identifier: Apache-2.0
// Content blocks -> messages of a chat: thoughts, texts and calls of an answer are one message, a tool's
// result is a message of its own.
#pragma once

#include <vector>

#include "base/json/json.h"
#include "base/result.h"
#include "server/api/chat_body.h"

namespace sparrow::anthropic {

// The text of a string or of a list of text blocks, with a blank line between two blocks.
Result<std::string> system_text(const Json& system);

// Appends what a message becomes. Results may refer to `tools` (null: there are none).
Status add_message(const Json& message, const Json* tools, std::vector<ChatMessage>& out);

}  // namespace sparrow::anthropic
