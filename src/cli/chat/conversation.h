// SPDX-License-Identifier: Apache-2.0
// Conversation: what was said, in the order in which it is sent to the server. Answers go back as they came,
// reasoning and calls included, so that the server finds the whole prefix in its cache.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json_writer.h"
#include "base/result.h"

namespace sparrow::cli {

struct ToolCall {
  std::string id, name, arguments;  // arguments: JSON text
};

struct Message {
  std::string role, content;
  std::vector<std::string> images = {};  // data URLs; they come before the text
  std::string reasoning = {};
  std::vector<ToolCall> calls = {};
  std::string tool_call_id = {};  // role tool: the call that this is the result of
};

class Conversation {
 public:
  // What the model is told first; empty: nothing.
  const std::string& system() const { return system_; }
  void set_system(std::string text) { system_ = std::move(text); }
  // Names of the tools that it may call.
  const std::vector<std::string>& tools() const { return tool_names_; }
  void set_tools(std::string json, std::vector<std::string> names);

  const std::vector<Message>& messages() const { return messages_; }
  // An image that goes with the next question.
  void attach(std::string data_url) { attached_.push_back(std::move(data_url)); }
  // A question that got no answer is replaced: it was asked again, in other words.
  void ask(std::string text);
  // Without the calls whose arguments were cut off: no server would take them back.
  void answer(Message message);
  void give_result(const std::string& call_id, std::string text);
  // Takes the last answer back, so that the same can be asked again. False: there is nothing to ask.
  bool take_back_answer();
  void clear() {
    messages_.clear();
    attached_.clear();
  }

  // "messages" and "tools" of a request.
  void write(JsonWriter& json) const;

 private:
  std::string system_, tools_;  // tools_: JSON text
  std::vector<std::string> tool_names_;
  std::vector<std::string> attached_;
  std::vector<Message> messages_;
};

// A file with a JSON list of tools in OpenAI's form: its text and the names of the tools, once each is known
// to be a function with a name of its own and, where it has them, parameters that are an object.
struct ToolsFile {
  std::string json;
  std::vector<std::string> names;
};
Result<ToolsFile> read_tools_file(const std::filesystem::path& file);

// A picture as a data URL. Error: the file cannot be read, or is none.
Result<std::string> read_image_file(const std::filesystem::path& file);

}  // namespace sparrow::cli
