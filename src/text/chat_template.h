// SPDX-License-Identifier: Apache-2.0
// ChatTemplate: messages -> prompt, by the checkpoint's own Jinja template, run in a sandbox.
// Parsed once; any thread may render.
#pragma once

#include <ctime>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json/json.h"
#include "base/result.h"
#include "text/jinja/syntax/ast.h"
#include "text/jinja/value/heap.h"
#include "text/messages.h"
#include "text/prompt_text.h"

namespace sparrow {

struct ChatInput {
  enum class Form {
    kOpenAi,    // converted and checked by to_template_messages and to_template_tools
    kTemplate,  // handed to the template as they are
  };

  Json messages;
  Form form = Form::kOpenAi;
  std::optional<Json> tools = {};
  std::vector<std::string> allowed_tools = {};  // the template sees these alone; empty: all
  TemplateOptions options = {};
  std::optional<Json> kwargs = {};  // an object; each member becomes a variable of the template, unchecked
  bool add_generation_prompt = true;
  // The prompt ends inside the last message, so that the model continues it; excludes add_generation_prompt.
  bool continue_final_message = false;
  std::optional<std::tm> now = {};  // for templates that print the date; the local time if absent
  jinja::Limits limits = {};
};

class ChatTemplate {
 public:
  // Variables that every rendering has, such as bos_token.
  using Constants = std::vector<std::pair<std::string, std::string>>;

  // Errors name the line of the template.
  static Result<ChatTemplate> parse(std::string_view source, Constants constants = {});
  // From chat_template.jinja, or else from chat_template of tokenizer_config.json: a template, or a list of
  // named ones, of which `default` is used, and `tool_use`, where there is one, when there are tools.
  static Result<ChatTemplate> load(const std::filesystem::path& model_dir);

  Result<PromptText> render(const ChatInput& input) const;

 private:
  ChatTemplate() = default;

  static Result<ChatTemplate> from_config(const Json& config);

  jinja::Template main_;
  std::optional<jinja::Template> with_tools_;
  Constants constants_;
};

}  // namespace sparrow
