// SPDX-License-Identifier: Apache-2.0
#include "cli/run/debug_text.h"

#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/mapped_file.h"
#include "base/json/json.h"
#include "base/json/json_writer.h"
#include "text/chat_template.h"
#include "text/output/output_parser.h"
#include "text/tokenizer/tokenizer.h"

namespace sparrow::cli {
namespace {

constexpr size_t kMaxTemplateBytes = size_t{16} << 20;
constexpr JsonLimits kLineLimits{.max_bytes = size_t{256} << 20, .max_depth = 512};

Error bad_field(std::string message) {
  return {Errc::kInvalidArgument, std::move(message)};
}

// Any JSON value as it came in.
void write_json(JsonWriter& out, const Json& value) {
  if (value.is_object()) {
    out.begin_object();
    for (size_t i = 0; i < value.size(); ++i) {
      out.key(value.key(i));
      write_json(out, value.member(i));
    }
    out.end_object();
  } else if (value.is_array()) {
    out.begin_array();
    for (size_t i = 0; i < value.size(); ++i) write_json(out, value.element(i));
    out.end_array();
  } else if (const auto text = value.as_string(); text.ok()) {
    out.string(text.value());
  } else if (const auto truth = value.as_bool(); truth.ok()) {
    out.boolean(truth.value());
  } else if (const auto digits = value.integer_digits()) {
    out.raw(*digits);
  } else if (value.as_number().ok()) {
    out.raw(value.brief());
  } else {
    out.null();  // also for numbers past the largest: JSON has no infinity
  }
}

void write_text_or_null(JsonWriter& out, std::string_view key, std::string_view text) {
  out.key(key);
  if (text.empty()) {
    out.null();
  } else {
    out.string(text);
  }
}

Result<std::string> bytes_of_hex(const Json& value) {
  const std::string hex = SPARROW_TRY(value.as_string());
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size() && digit(hex[i]) >= 0 && digit(hex[i + 1]) >= 0; i += 2)
    bytes += static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1]));
  if (bytes.size() * 2 != hex.size()) return value.error("must be pairs of hex digits");
  return bytes;
}

// The pieces of an answer: "chunks", or "chunks_hex" for bytes cut anywhere.
Result<std::vector<std::string>> read_chunks(const Json& request) {
  const auto hex = request.find("chunks_hex");
  const Json list = hex ? *hex : SPARROW_TRY(request.at("chunks"));
  SPARROW_TRY(list.expect_array());
  std::vector<std::string> chunks;
  for (size_t i = 0; i < list.size(); ++i)
    chunks.push_back(SPARROW_TRY(hex ? bytes_of_hex(list.element(i)) : list.element(i).as_string()));
  return chunks;
}

void write_delta(JsonWriter& out, const OutputDelta& delta) {
  out.begin_object();
  if (delta.kind == OutputDelta::Kind::kReasoning) out.key("reasoning").string(delta.text);
  if (delta.kind == OutputDelta::Kind::kContent) out.key("content").string(delta.text);
  if (delta.kind == OutputDelta::Kind::kToolCall) {
    out.key("tool_calls").begin_array().begin_object().key("index").integer(delta.call);
    write_text_or_null(out, "name", delta.name);
    out.key("arguments").string(delta.text).end_object().end_array();
  }
  out.end_object();
}

struct ParseRequest {
  OutputParserOptions options;
  ToolSet tools;
  std::vector<std::string> chunks;
  bool stream, final;
};

Result<ParseRequest> read_parse_request(const Json& request, std::string_view op) {
  ParseRequest parse;
  parse.options.parse_reasoning = op != "parse_tools";
  parse.options.parse_tools = op != "parse_reasoning";
  parse.options.starts_in_reasoning = SPARROW_TRY(request.string_or("thinking_mode", "")) == "enabled";
  if (const auto tools = request.find("tools")) parse.tools = SPARROW_TRY(ToolSet::from_json(*tools));
  parse.chunks = SPARROW_TRY(read_chunks(request));
  parse.stream = SPARROW_TRY(request.bool_or("stream", false));
  parse.final = SPARROW_TRY(request.bool_or("final", true));
  if (!parse.stream) {
    std::string whole;
    for (const std::string& chunk : parse.chunks) whole += chunk;
    parse.chunks = {whole};
  }
  return parse;
}

Status parse_output(const Json& request, std::string_view op, JsonWriter& out) {
  ParseRequest parse = SPARROW_TRY(read_parse_request(request, op));
  parse.options.tools = &parse.tools;
  OutputParser parser(parse.options);
  ParsedOutput result;
  std::vector<OutputDelta> all, deltas;
  const auto take = [&] {
    for (OutputDelta& delta : deltas) {
      result.add(delta);
      all.push_back(std::move(delta));
    }
    deltas.clear();
  };
  for (const std::string& chunk : parse.chunks) {
    parser.feed(chunk, deltas);
    take();
  }
  if (parse.final) {
    parser.finish(deltas);
    take();
  }
  if (parse.options.parse_reasoning) write_text_or_null(out, "reasoning", result.reasoning);
  write_text_or_null(out, "content", result.content);
  if (parse.options.parse_tools) {
    out.key("tool_calls").begin_array();
    for (const ParsedToolCall& call : result.tool_calls)
      out.begin_object().key("name").string(call.name).key("arguments").string(call.arguments).end_object();
    out.end_array();
  }
  out.key("deltas").begin_array();
  if (parse.stream)
    for (const OutputDelta& delta : all) write_delta(out, delta);
  out.end_array();
  return Ok{};
}

class TextOperations {
 public:
  explicit TextOperations(const DebugTextOptions& options) : options_(options) {}

  std::string answer(std::string_view line) {
    JsonWriter out;
    out.begin_object();
    const Status done = try_answer(line, out);
    if (done.ok()) return out.end_object().take();
    // Whatever had been written of the answer goes.
    JsonWriter failed;
    failed.begin_object();
    if (!id_.empty()) failed.key("id").raw(id_);
    return failed.key("error").string(done.error().message).end_object().take();
  }

 private:
  Status try_answer(std::string_view line, JsonWriter& out) {
    id_.clear();
    const JsonDocument document = SPARROW_TRY(JsonDocument::parse(line, "the line", kLineLimits));
    const Json request = document.root();
    SPARROW_TRY(request.expect_object());
    if (const auto id = request.find("id")) {
      JsonWriter writer;
      write_json(writer, *id);
      id_ = writer.take();
      out.key("id").raw(id_);
    }
    const Json op_field = SPARROW_TRY(request.at("op"));
    const std::string op = SPARROW_TRY(op_field.as_string());
    if (op == "render_chat") return render_chat(request, out);
    if (op == "parse_tools" || op == "parse_reasoning" || op == "parse_output")
      return parse_output(request, op, out);
    if (op == "tokenize") return tokenize(request, out);
    if (op == "detokenize") return detokenize(request, out);
    return op_field.error(
        "must be render_chat, parse_tools, parse_reasoning, parse_output, tokenize or detokenize");
  }

  Status render_chat(const Json& request, JsonWriter& out) {
    const ChatTemplate& chat_template = *SPARROW_TRY(loaded_template());
    const Json format_field = request.find("input_format").value_or(request);
    const std::string format = SPARROW_TRY(request.string_or("input_format", "openai"));
    if (format != "openai" && format != "template") return format_field.error("must be openai or template");
    ChatInput input{.messages = SPARROW_TRY(request.at("messages"))};
    input.form = format == "openai" ? ChatInput::Form::kOpenAi : ChatInput::Form::kTemplate;
    input.tools = request.find("tools");
    input.kwargs = request.find("chat_template_kwargs");
    if (input.kwargs) SPARROW_TRY(input.kwargs->expect_object());
    input.continue_final_message = SPARROW_TRY(request.bool_or("continue_final_message", false));
    input.add_generation_prompt =
        SPARROW_TRY(request.bool_or("add_generation_prompt", !input.continue_final_message));
    const bool wants_spans = SPARROW_TRY(request.bool_or("return_spans", false));
    const bool wants_ids = SPARROW_TRY(request.bool_or("return_ids", false));
    const PromptText prompt = SPARROW_TRY(chat_template.render(input));
    out.key("prompt").string(prompt.text);
    if (wants_spans) write_spans(prompt, out);
    if (wants_ids) write_ids(SPARROW_TRY(SPARROW_TRY(loaded_tokenizer())->encode(prompt)), out);
    return Ok{};
  }

  // The prompt in pieces: markup, which may become control tokens, and what came with the request.
  static void write_spans(const PromptText& prompt, JsonWriter& out) {
    const auto write = [&](size_t start, size_t end, bool markup) {
      if (start == end) return;
      out.begin_object().key("text").string(std::string_view(prompt.text).substr(start, end - start));
      out.key("markup").boolean(markup).end_object();
    };
    out.key("spans").begin_array();
    size_t done = 0;
    for (const TextRange& range : prompt.markup) {
      write(done, range.start, false);
      write(range.start, range.end, true);
      done = range.end;
    }
    write(done, prompt.text.size(), false);
    out.end_array();
  }

  static void write_ids(std::span<const int32_t> ids, JsonWriter& out) {
    out.key("ids").begin_array();
    for (const int32_t id : ids) out.integer(id);
    out.end_array();
  }

  Status tokenize(const Json& request, JsonWriter& out) {
    const Tokenizer& tokenizer = *SPARROW_TRY(loaded_tokenizer());
    const std::string text = SPARROW_TRY(SPARROW_TRY(request.at("text")).as_string());
    const bool special = SPARROW_TRY(request.bool_or("special", true));
    write_ids(SPARROW_TRY(tokenizer.encode(text, special ? Recognise::kAll : Recognise::kNotSpecial)), out);
    return Ok{};
  }

  Status detokenize(const Json& request, JsonWriter& out) {
    const Tokenizer& tokenizer = *SPARROW_TRY(loaded_tokenizer());
    const Json list = SPARROW_TRY(request.at("ids"));
    SPARROW_TRY(list.expect_array());
    std::vector<int32_t> ids;
    for (size_t i = 0; i < list.size(); ++i)
      ids.push_back(static_cast<int32_t>(SPARROW_TRY(list.element(i).as_int(0, tokenizer.vocab_size() - 1))));
    const bool skip_special = SPARROW_TRY(request.bool_or("skip_special", false));
    out.key("text").string(SPARROW_TRY(tokenizer.decode(ids, skip_special)));
    return Ok{};
  }

  // Both are read when first needed: to parse answers, a folder without them will do.
  Result<const Tokenizer*> loaded_tokenizer() {
    if (!tokenizer_) {
      if (options_.model.empty()) return bad_field("tokenize, detokenize and return_ids need --model");
      tokenizer_ = SPARROW_TRY(Tokenizer::load(options_.model));
    }
    return &*tokenizer_;
  }

  Result<const ChatTemplate*> loaded_template() {
    if (!template_) {
      if (options_.chat_template.empty()) {
        template_ = SPARROW_TRY(ChatTemplate::load(options_.model));
      } else {
        const std::string source = SPARROW_TRY(read_text_file(options_.chat_template, kMaxTemplateBytes));
        template_ = SPARROW_TRY(ChatTemplate::parse(source));
      }
    }
    return &*template_;
  }

  const DebugTextOptions& options_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> template_;
  std::string id_;  // of the request, as JSON
};

}  // namespace

Status answer_text_lines(const DebugTextOptions& options, std::istream& in, std::ostream& out) {
  if (options.model.empty() && options.chat_template.empty())
    return bad_field("debug text needs --model or --chat-template");
  std::error_code ignored;
  if (!options.model.empty() && !std::filesystem::is_directory(options.model, ignored))
    return Error{Errc::kNotFound, strf("--model {} is not a folder", quoted(options.model))};
  TextOperations operations(options);
  for (std::string line; std::getline(in, line);) {
    // Each answer at once: whoever asks may wait for it before the next question.
    out << operations.answer(line) << '\n' << std::flush;
    if (!out) return Error{Errc::kIo, "cannot write the answers"};
  }
  return Ok{};
}

Status run_debug_text(const DebugTextOptions& options) {
  return answer_text_lines(options, std::cin, std::cout);
}

}  // namespace sparrow::cli
