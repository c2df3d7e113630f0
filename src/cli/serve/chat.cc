// SPDX-License-Identifier: Apache-2.0
// `sparrow chat`: a conversation with a server, in the terminal. Thinking is dimmed, tool calls are shown,
// the history is sent along.
#include "cli/serve/chat.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <vector>

#include "base/json.h"
#include "base/json_writer.h"
#include "cli/serve/http_client.h"

namespace sparrow::cli {
namespace {

std::atomic<bool> stop_answer{false};

// Ctrl-C ends the answer, and at the prompt the program.
void stop_on_interrupt(int) {
  if (stop_answer.exchange(true)) std::_Exit(130);
}

struct Message {
  std::string role, content, reasoning;
};

// Writes pieces of an answer with colours where there is a terminal.
class Screen {
 public:
  void reasoning(std::string_view text) { show(text, "\033[2m"); }
  void content(std::string_view text) { show(text, ""); }
  void call(std::string_view text) { show(text, "\033[36m"); }
  void end() {
    show("", "");
    std::fputs("\n", stdout);
    std::fflush(stdout);
  }

 private:
  void show(std::string_view text, const char* style) {
    if (style != style_ && colour_) {
      std::fputs("\033[0m", stdout);
      std::fputs(style, stdout);
    }
    // Thinking and answer are two paragraphs.
    if (style != style_ && started_ && !text.empty()) std::fputs("\n", stdout);
    style_ = style;
    started_ |= !text.empty();
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  const bool colour_ = isatty(STDOUT_FILENO) != 0;
  const char* style_ = "";
  bool started_ = false;
};

// Reads the events of one streamed answer.
class AnswerReader {
 public:
  void feed(std::string_view bytes) {
    pending_ += bytes;
    for (size_t end; (end = pending_.find('\n')) != std::string::npos; pending_.erase(0, end + 1))
      line(std::string_view(pending_).substr(0, end));
  }

  const Message& message() const { return message_; }
  const std::string& error() const { return error_; }
  // What is left of a body that was no stream: an error's JSON.
  void finish() {
    if (!pending_.empty()) take_error(pending_);
    screen_.end();
  }

 private:
  void line(std::string_view line) {
    if (!line.starts_with("data: ")) return;
    line.remove_prefix(6);
    if (line == "[DONE]") return;
    const auto document = JsonDocument::parse(line, "event");
    if (!document.ok()) return;
    const Json root = document->root();
    if (root.find("error")) return take_error(line);
    const auto choices = root.find("choices");
    if (!choices || choices->size() == 0) return;
    if (const auto delta = choices->element(0).find("delta")) take_delta(*delta);
  }

  void take_delta(const Json& delta) {
    if (const auto text = delta.find("reasoning"); text && !text->string_view().empty()) {
      screen_.reasoning(text->string_view());
      message_.reasoning += text->string_view();
    }
    if (const auto text = delta.find("content"); text && !text->string_view().empty()) {
      screen_.content(text->string_view());
      message_.content += text->string_view();
    }
    const auto calls = delta.find("tool_calls");
    for (size_t i = 0; calls && i < calls->size(); ++i)
      if (const auto function = calls->element(i).find("function")) {
        if (const auto name = function->find("name")) screen_.call(strf("[call {}] ", name->string_view()));
        if (const auto arguments = function->find("arguments")) screen_.call(arguments->string_view());
      }
  }

  void take_error(std::string_view body) {
    const auto document = JsonDocument::parse(body, "answer");
    if (!document.ok()) return;
    if (const auto error = document->root().find("error"))
      error_ = error->string_or("message", "the server refused").value();
  }

  Screen screen_;
  Message message_;
  std::string pending_, error_;
};

std::string request_body(const ChatOptions& options, const std::string& model,
                         const std::vector<Message>& history) {
  JsonWriter json;
  json.begin_object().key("model").string(model).key("stream").boolean(true);
  if (options.temperature) json.key("temperature").number(*options.temperature);
  if (options.max_tokens) json.key("max_tokens").integer(*options.max_tokens);
  if (options.thinking)
    json.key("chat_template_kwargs")
        .begin_object()
        .key("thinking_mode")
        .string(*options.thinking)
        .end_object();
  json.key("messages").begin_array();
  for (const Message& message : history) {
    json.begin_object().key("role").string(message.role).key("content").string(message.content);
    if (!message.reasoning.empty()) json.key("reasoning").string(message.reasoning);
    json.end_object();
  }
  json.end_array().end_object();
  return json.take();
}

Result<std::string> first_model(const HttpUrl& url, const std::string& api_key) {
  std::string body;
  const int status = SPARROW_TRY(http_call(url, {.path = "/v1/models", .api_key = api_key},
                                           [&](std::string_view piece) { body += piece; }));
  if (status == 401)
    return Error{Errc::kInvalidArgument, "the server wants a key: --api-key or SPARROW_API_KEY"};
  const auto document = JsonDocument::parse(body, "/v1/models");
  if (status == 200 && document.ok())
    if (const auto data = document->root().find("data"); data && data->size() > 0)
      return data->element(0).string_or("id", "");
  return Error{Errc::kIo, strf("the server answered /v1/models with status {}", status)};
}

}  // namespace

Status run_chat(const ChatOptions& options) {
  const HttpUrl url = SPARROW_TRY(parse_http_url(options.url));
  const char* from_environment = std::getenv("SPARROW_API_KEY");
  const std::string api_key = !options.api_key.empty() ? options.api_key
                              : from_environment       ? from_environment
                                                       : "";
  const std::string model = options.model.empty() ? SPARROW_TRY(first_model(url, api_key)) : options.model;
  std::vector<Message> history;
  if (!options.system.empty()) history.push_back({"system", options.system, ""});
  const size_t kept = history.size();
  const bool interactive = isatty(STDIN_FILENO) != 0;
  if (interactive)
    std::fputs(strf("{} at {}. /new starts afresh, /exit ends, Ctrl-C stops an answer.\n", model, options.url)
                   .c_str(),
               stderr);
  signal(SIGINT, stop_on_interrupt);

  std::string line;
  for (;;) {
    stop_answer = true;  // Ctrl-C at the prompt ends the program
    if (interactive) std::fputs("> ", stderr);
    if (!std::getline(std::cin, line) || line == "/exit") break;
    if (line.empty()) continue;
    if (line == "/new") {
      history.resize(kept);
      continue;
    }
    stop_answer = false;
    history.push_back({"user", line, ""});
    AnswerReader reader;
    const auto status = http_call(url,
                                  {.method = "POST",
                                   .path = "/v1/chat/completions",
                                   .body = request_body(options, model, history),
                                   .api_key = api_key,
                                   .stop = &stop_answer},
                                  [&](std::string_view bytes) { reader.feed(bytes); });
    reader.finish();
    if (!status.ok() || !reader.error().empty()) {
      history.pop_back();  // it was not answered: the next try should not carry it along
      const std::string reason = status.ok() ? reader.error() : status.error().message;
      if (!interactive) return Error{Errc::kIo, reason};
      std::fputs(strf("sparrow: {}\n", reason).c_str(), stderr);
      continue;
    }
    Message answer = reader.message();
    answer.role = "assistant";
    history.push_back(std::move(answer));
  }
  return Ok{};
}

}  // namespace sparrow::cli
