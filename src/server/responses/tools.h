// SPDX-License-Identifier: Apache-2.0
// Tools of a response -> functions of a chat. A tool in a namespace is a function that carries both names, a
// custom tool one with a single argument, and tools that a provider would run itself are left out: they are
// an offer to the model, which is free not to take it.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/json/json.h"
#include "base/result.h"
#include "server/api/chat_body.h"

namespace sparrow::responses {

// The function's name.
std::string name_in_chat(std::string_view space, std::string_view name);

// A custom tool's input as its function's arguments, and back. Of arguments that were cut off, what there is.
std::string custom_arguments(std::string_view input);
std::string custom_input(const std::string& arguments);

class ToolTable {
 public:
  // A tool as its client knows it.
  struct Tool {
    std::string name;
    std::string space = {};  // its namespace; empty: none
    bool is_custom = false;
  };

  Status translate(const Json& tools, ChatBody& chat);
  // By the function's name.
  Tool find(const std::string& name) const;
  bool has_left_out() const { return has_left_out_; }

 private:
  Status add(const Json& tool, std::string_view space, std::string_view preface, ChatBody& chat,
             JsonWriter& json);
  Status add_space(const Json& space, ChatBody& chat, JsonWriter& json);

  std::map<std::string, Tool> tools_;  // but for plain functions
  size_t num_functions_ = 0;
  bool has_left_out_ = false;
};

Status translate_tool_choice(const Json& choice, ChatBody& chat);

}  // namespace sparrow::responses
