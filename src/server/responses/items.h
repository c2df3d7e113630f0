// SPDX-License-Identifier: Apache-2.0
// Items: the input of a response, and what earlier answers put there, -> messages of a chat.
#pragma once

#include <string>
#include <vector>

#include "base/json/json.h"
#include "base/result.h"
#include "server/api/chat_body.h"

namespace sparrow::responses {

// A thought as encrypted_content holds it. It is not secret, only packed: what a client may keep without
// showing it comes back as it was.
std::string packed_thought(std::string_view text);

// Reads items in their order. Neighbours that one answer consists of (a thought, text, calls) are one
// message.
class ItemReader {
 public:
  // A string, or a list of items.
  Status add_input(const Json& input);
  Status add_item(const Json& item);

  std::vector<ChatMessage>& messages() { return messages_; }

 private:
  Status add_message(const Json& item);
  Status add_call(const Json& item);
  Status add_output(const Json& item);
  Status add_reasoning(const Json& item);
  ChatMessage& new_message(std::string_view role, const Json& item, std::string content_origin);
  ChatMessage& answer_of(const Json& item);
  Status add_parts(const Json& content, ChatMessage& message);

  std::vector<ChatMessage> messages_;
};

}  // namespace sparrow::responses
