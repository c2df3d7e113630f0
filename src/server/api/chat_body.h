// SPDX-License-Identifier: Apache-2.0
// ChatBody: a request of another API in the form of a chat completion, which is then read like one: whatever
// chats take, that API takes too. It knows what was made of what, so that errors name what the client sent.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json/json.h"
#include "base/json/json_writer.h"
#include "base/result.h"

namespace sparrow {

struct ChatCall {
  std::string id, name;
  std::string arguments;          // JSON text, as the model wrote it
  std::string origin, id_origin;  // paths in the client's body
};

struct ChatMessage {
  std::string_view role;
  // Paths in the client's body: of what the message was made of, and of its content.
  std::string origin, content_origin;
  std::vector<std::string> parts = {};  // of the content, as JSON
  struct ImageOrigin {
    size_t part;                 // which of them
    std::string path, url_path;  // in the client's body: the image, and what says where it is
  };
  std::vector<ImageOrigin> image_origins = {};
  std::string reasoning = {};                     // assistant
  std::vector<ChatCall> calls = {};               // assistant
  std::string call_id = {}, call_id_origin = {};  // tool

  void add_text(std::string_view text);
  // `image`: the client's part or block, `url_path` the path of what the URL was made of. `detail`: as in
  // OpenAI's API; empty: not said.
  void add_image(const Json& image, std::string_view url, std::string url_path, std::string_view detail = "");
};

// A field of chats that the other API calls otherwise.
struct OtherName {
  std::string_view name, instead;
};

class ChatBody {
 public:
  ChatBody() { json_.begin_object(); }

  // All members of the body but its `own`, which its reader translates. Error at one that is among `others`.
  Status copy_rest(const Json& body, std::span<const std::string_view> own,
                   std::span<const OtherName> others);
  // The next member: its value is written to what this returns. Errors at `name` are told of `origin`.
  JsonWriter& member(std::string_view name, std::string origin);
  void add_messages(const std::vector<ChatMessage>& messages);
  // What errors call `chat_path` and all that is in it.
  void name(std::string chat_path, std::string origin);

  // The whole body; nothing may be added after this.
  std::string take();
  // An error of the chat's reader in the client's terms.
  Error translated(Error error) const;
  // The path in the client's body of what a path of the chat was made of.
  std::string origin_of(const std::string& chat_path) const;

 private:
  JsonWriter json_;
  std::vector<std::pair<std::string, std::string>> names_;  // the longest prefix that fits counts
};

// The text of a value as JSON.
std::string json_text(const Json& value);

}  // namespace sparrow
