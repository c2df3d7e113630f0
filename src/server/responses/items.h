// SPDX-License-Identifier: Apache-2.0
// Items: the input of a response, and what earlier answers put there, -> messages of a chat.
#pragma once

#include <string>
#include <vector>

#include "base/json/json.h"
#include "base/result.h"
#include "server/api/chat_body.h"
#include "server/openai/prepare.h"
#include "server/responses/store.h"

namespace sparrow::responses {

// A thought as encrypted_content holds it. It is not secret, only packed: what a client may keep without
// showing it comes back as it was.
std::string packed_thought(std::string_view text);

// Reads items in their order. Neighbours that one answer consists of (a thought, text, calls) are one
// message.
class ItemReader {
 public:
  // Items that are only named are looked up where those of `asker` are stored.
  explicit ItemReader(const openai::Asker& asker) : asker_(asker) {}

  // A string, or a list of items.
  Status add_input(const Json& input);
  // Items of earlier responses, which were read before.
  Status add_stored(const StoredItems& items);

  std::vector<ChatMessage>& messages() { return messages_; }
  // All that was added, as it may be stored: with ids, and every content a list of parts.
  StoredItems& items() { return items_; }

 private:
  Status add_item(const Json& item);
  Status add_message(const Json& item);
  Status add_reference(const Json& item);
  Status add_call(const Json& item, bool is_custom);
  Status add_output(const Json& item);
  Status add_reasoning(const Json& item);
  ChatMessage& new_message(std::string_view role, const Json& item, std::string content_origin);
  ChatMessage& answer_of(const Json& item);
  Status add_parts(const Json& content, ChatMessage& message);

  const openai::Asker& asker_;
  std::vector<ChatMessage> messages_;
  StoredItems items_;
};

}  // namespace sparrow::responses
