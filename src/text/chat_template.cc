// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template.h"

#include <string_view>

#include "base/files/mapped_file.h"
#include "base/strf.h"
#include "text/jinja/run/interpreter.h"
#include "text/jinja/syntax/parser.h"
#include "text/jinja/value/compare.h"
#include "text/jinja/value/from_json.h"
#include "text/jinja/value/unicode.h"

namespace sparrow {

namespace {

using jinja::bool_value;
using jinja::Entry;
using jinja::Heap;
using jinja::Interpreter;
using jinja::Kind;
using jinja::none_value;
using jinja::text_value;
using jinja::Value;

constexpr size_t kMaxTemplateBytes = size_t{4} << 20;
constexpr size_t kMaxConfigBytes = size_t{64} << 20;

// Marks where the last message's text ends, as Hugging Face's library does it: a template may do anything to
// that text, but it will hardly take the mark apart. The blank at its end shows whether the template trims.
constexpr std::string_view kMark = "CONTINUE_FINAL_MESSAGE_TAG ";
constexpr std::string_view kBareMark = kMark.substr(0, kMark.size() - 1);

Error cannot_continue(std::string_view reason) {
  return {Errc::kInvalidArgument, strf("continue_final_message: {}", reason)};
}

Result<Value> with_entry(Heap& heap, const Value& dict, std::string_view key, const Value& value) {
  std::vector<Entry> entries(dict.dict->view().begin(), dict.dict->view().end());
  entries.push_back({text_value(key), value});  // takes the place of the one before
  return heap.dict(entries);
}

struct Continued {
  Value messages;
  std::string_view text;  // that the prompt must end with
};

Result<Continued> marked_parts(Heap& heap, const Value& content) {
  std::vector<Value> parts(content.list->view().begin(), content.list->view().end());
  for (size_t i = parts.size(); i-- > 0;) {
    if (!parts[i].is(Kind::kDict)) continue;
    const Value* text = SPARROW_TRY(find_key(heap, *parts[i].dict, text_value("text")));
    if (text == nullptr || !text->is_string()) continue;
    const std::string_view original = text->view();
    const Value marked = SPARROW_TRY(heap.joined(original, kMark));
    parts[i] = SPARROW_TRY(with_entry(heap, parts[i], "text", marked));
    return Continued{SPARROW_TRY(heap.list(parts)), original};
  }
  return cannot_continue("the final message has no text");
}

// The messages with the mark behind the text of the last one.
Result<Continued> marked_messages(Heap& heap, const Value& messages) {
  const bool any = messages.is(Kind::kList) && messages.list->size > 0;
  if (!any || !messages.list->view().back().is(Kind::kDict)) return cannot_continue("there is no message");
  std::vector<Value> all(messages.list->view().begin(), messages.list->view().end());
  const Value* content = SPARROW_TRY(find_key(heap, *all.back().dict, text_value("content")));
  Continued marked{};
  if (content != nullptr && content->is_string()) {
    marked.text = content->view();
    marked.messages = SPARROW_TRY(heap.joined(marked.text, kMark));
  } else if (content != nullptr && content->is(Kind::kList)) {
    marked = SPARROW_TRY(marked_parts(heap, *content));
  } else {
    return cannot_continue("the final message has no content");
  }
  all.back() = SPARROW_TRY(with_entry(heap, all.back(), "content", marked.messages));
  marked.messages = SPARROW_TRY(heap.list(all));
  return marked;
}

std::string_view stripped(std::string_view text) {
  return jinja::strip_right(jinja::strip_left(text, nullptr), nullptr);
}

Result<PromptText> cut_at_mark(PromptText prompt, std::string_view text) {
  const size_t mark = prompt.text.rfind(kBareMark);
  if (mark == std::string::npos || prompt.text.find(stripped(text)) == std::string::npos)
    return cannot_continue(
        "the final message does not appear in the prompt; the template may have left it out");
  const bool keeps_blanks = std::string_view(prompt.text).substr(mark, kMark.size()) == kMark;
  prompt.truncate(mark);
  if (!keeps_blanks) prompt.truncate(jinja::strip_right(prompt.text, nullptr).size());
  return prompt;
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm broken_down{};
  localtime_r(&now, &broken_down);
  return broken_down;
}

// Those that are known by name come last: they have been checked. Null means absent.
Status define_options(Heap& heap, Interpreter& interpreter, const TemplateOptions& options) {
  for (size_t i = 0; options.more && i < options.more->size(); ++i)
    if (const Json member = options.more->member(i); !member.is_null())
      SPARROW_TRY(interpreter.define(options.more->key(i), SPARROW_TRY(jinja::from_json(heap, member))));
  if (options.thinking_mode)
    SPARROW_TRY(interpreter.define("thinking_mode", text_value(*options.thinking_mode)));
  if (options.enable_thinking)
    SPARROW_TRY(interpreter.define("enable_thinking", bool_value(*options.enable_thinking)));
  if (options.reasoning_effort)
    SPARROW_TRY(interpreter.define("reasoning_effort", text_value(*options.reasoning_effort)));
  if (options.model_identity)
    SPARROW_TRY(interpreter.define("model_identity", text_value(*options.model_identity)));
  return Ok{};
}

// tokenizer_config.json writes a token as its text or as an object around it.
std::optional<std::string> token_text(const Json& token) {
  if (token.is_string()) return std::string(token.string_view());
  const std::optional<Json> content = token.find("content");
  if (content && content->is_string()) return std::string(content->string_view());
  return std::nullopt;
}

ChatTemplate::Constants special_tokens(const Json& config) {
  ChatTemplate::Constants constants;
  for (size_t i = 0; i < config.size(); ++i) {
    if (!config.key(i).ends_with("_token")) continue;
    if (auto text = token_text(config.member(i))) constants.emplace_back(config.key(i), std::move(*text));
  }
  return constants;
}

}  // namespace

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, Constants constants) {
  if (source.size() > kMaxTemplateBytes)
    return Error{Errc::kInvalidArgument, strf("the chat template is {} bytes long; at most {} are allowed",
                                              source.size(), kMaxTemplateBytes)};
  ChatTemplate parsed;
  parsed.main_ = SPARROW_TRY(jinja::parse_template(source));
  parsed.constants_ = std::move(constants);
  return parsed;
}

Result<ChatTemplate> ChatTemplate::from_config(const Json& config) {
  const std::optional<Json> found = config.find("chat_template");
  if (!found)
    return Error{Errc::kNotFound,
                 "the model has no chat template: neither chat_template.jinja nor chat_template "
                 "in tokenizer_config.json"};
  if (!found->is_array()) return parse(SPARROW_TRY(found->as_string()), special_tokens(config));
  std::optional<ChatTemplate> chosen;
  std::optional<jinja::Template> with_tools;
  for (size_t i = 0; i < found->size(); ++i) {
    const std::string name = SPARROW_TRY(SPARROW_TRY(found->element(i).at("name")).as_string());
    if (name != "default" && name != "tool_use") continue;
    const std::string source = SPARROW_TRY(SPARROW_TRY(found->element(i).at("template")).as_string());
    ChatTemplate parsed = SPARROW_TRY(parse(source, special_tokens(config)));
    if (name == "default") {
      chosen = std::move(parsed);
    } else {
      with_tools = std::move(parsed.main_);
    }
  }
  if (!chosen) return found->error("must hold a template called default");
  chosen->with_tools_ = std::move(with_tools);
  return std::move(*chosen);
}

Result<ChatTemplate> ChatTemplate::load(const std::filesystem::path& model_dir) {
  const std::filesystem::path file = model_dir / "chat_template.jinja";
  const std::filesystem::path config_file = model_dir / "tokenizer_config.json";
  std::error_code ec;
  std::string config_text = "{}";
  if (std::filesystem::exists(config_file, ec))
    config_text = SPARROW_TRY(read_text_file(config_file, kMaxConfigBytes));
  const JsonDocument document = SPARROW_TRY(JsonDocument::parse(config_text, quoted(config_file)));
  const Json config = document.root();
  SPARROW_TRY(config.expect_object());
  if (!std::filesystem::exists(file, ec)) return from_config(config);
  return parse(SPARROW_TRY(read_text_file(file, kMaxTemplateBytes)), special_tokens(config));
}

Result<PromptText> ChatTemplate::render(const ChatInput& input) const {
  if (input.continue_final_message && input.add_generation_prompt)
    return cannot_continue("it excludes add_generation_prompt");
  const bool openai = input.form == ChatInput::Form::kOpenAi;
  const bool has_tools = input.tools && !input.tools->is_null();
  Heap heap(input.limits);
  Interpreter interpreter(heap, input.now ? *input.now : local_time());
  Value messages = openai ? SPARROW_TRY(to_template_messages(heap, input.messages))
                          : SPARROW_TRY(messages_as_they_are(heap, input.messages));
  std::string_view continued;
  if (input.continue_final_message) {
    const Continued marked = SPARROW_TRY(marked_messages(heap, messages));
    messages = marked.messages;
    continued = marked.text;
  }
  Value tools = none_value();
  if (has_tools)
    tools = openai ? SPARROW_TRY(to_template_tools(heap, *input.tools, input.allowed_tools))
                   : SPARROW_TRY(jinja::from_json(heap, *input.tools));
  for (const auto& [name, text] : constants_)
    SPARROW_TRY(interpreter.define(name, SPARROW_TRY(heap.string(text, jinja::kMarkup))));
  SPARROW_TRY(interpreter.define("messages", messages));
  SPARROW_TRY(interpreter.define("tools", tools));
  SPARROW_TRY(interpreter.define("documents", none_value()));
  SPARROW_TRY(interpreter.define("add_generation_prompt", bool_value(input.add_generation_prompt)));
  SPARROW_TRY(define_options(heap, interpreter, input.options));
  if (input.kwargs && !input.kwargs->is_null()) {
    SPARROW_TRY(input.kwargs->expect_object());
    for (size_t i = 0; i < input.kwargs->size(); ++i)
      SPARROW_TRY(interpreter.define(input.kwargs->key(i),
                                     SPARROW_TRY(jinja::from_json(heap, input.kwargs->member(i)))));
  }
  PromptText prompt = SPARROW_TRY(interpreter.render(has_tools && with_tools_ ? *with_tools_ : main_));
  return input.continue_final_message ? cut_at_mark(std::move(prompt), continued) : std::move(prompt);
}

}  // namespace sparrow
