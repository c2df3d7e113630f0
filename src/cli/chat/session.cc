// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/session.h"

#include <chrono>

#include "base/strf.h"
#include "cli/chat/answer_stream.h"

namespace sparrow::cli {
namespace {

using Clock = std::chrono::steady_clock;

// A rate of fewer tokens or less time says more about the clock than about the server.
constexpr int64_t kFewTokens = 8;
constexpr std::chrono::duration<double> kShortTime{0.1};

constexpr const char* kNoResult = "(the user gave no result)";

std::string usage_line(const AnswerUsage& usage, std::chrono::duration<double> time) {
  std::string line = strf("{} tokens in", usage.prompt_tokens);
  if (usage.cached_tokens > 0) line += strf(" ({} cached)", usage.cached_tokens);
  line += strf(", {} out", usage.completion_tokens);
  if (usage.reasoning_tokens > 0) line += strf(" ({} thinking)", usage.reasoning_tokens);
  // The first token came at the start of the time.
  if (usage.completion_tokens >= kFewTokens && time >= kShortTime)
    line += strf(", {:.1f} tokens/s", static_cast<double>(usage.completion_tokens - 1) / time.count());
  return line;
}

}  // namespace

Session::Session(Setup setup) : setup_(std::move(setup)), screen_(setup_.options.raw) {
  conversation_.set_system(setup_.options.system);
}

Status Session::run() {
  if (!setup_.options.tools.empty()) SPARROW_TRY(load_tools(setup_.options.tools));
  if (setup_.interactive)
    screen_.note(strf("{} at {}. /help lists commands, Ctrl-C stops an answer, Ctrl-D ends.", setup_.model,
                      setup_.options.url));
  for (bool interrupted = false; !over_;) {
    setup_.stop = false;
    const UserInput input = setup_.read("> ");
    if (input.kind == UserInput::Kind::kEnd) break;
    if (input.kind == UserInput::Kind::kInterrupt) {
      if (interrupted) break;
      interrupted = true;
      screen_.note("Ctrl-C again, Ctrl-D or /quit ends.");
      continue;
    }
    interrupted = false;
    if (input.text.find_first_not_of(" \t\r\n") == std::string::npos) continue;
    const Status status = take_turn(input.text);
    if (screen_.is_closed()) return Error{Errc::kIo, "standard output was closed"};
    if (status.ok()) continue;
    if (!setup_.interactive) return status;
    screen_.error(status.error().message);
  }
  return Ok{};
}

Status Session::take_turn(const std::string& text) {
  if (!setup_.options.one_turn) {
    const CommandLine command = split_command(text);
    if (!command.name.empty()) return run_command(command.name, command.argument);
  }
  // A second slash: the line is text.
  conversation_.ask(text.starts_with("//") && !setup_.options.one_turn ? text.substr(1) : text);
  return talk();
}

Status Session::talk() {
  for (;;) {
    SPARROW_TRY(receive_answer());
    const Message& last = conversation_.messages().back();
    if (last.role != "assistant" || last.calls.empty()) return Ok{};
    const std::vector<ToolCall> calls = last.calls;
    if (!ask_for_results(calls)) return Ok{};
  }
}

std::string Session::request_body() const {
  const ChatOptions& options = setup_.options;
  JsonWriter json;
  json.begin_object().key("model").string(setup_.model).key("stream").boolean(true);
  json.key("stream_options").begin_object().key("include_usage").boolean(true).end_object();
  if (options.temperature) json.key("temperature").number(*options.temperature);
  if (options.max_tokens) json.key("max_tokens").integer(*options.max_tokens);
  if (options.thinking)
    json.key("chat_template_kwargs")
        .begin_object()
        .key("thinking_mode")
        .string(*options.thinking)
        .end_object();
  conversation_.write(json);
  json.end_object();
  return json.take();
}

Status Session::receive_answer() {
  setup_.stop = false;
  std::optional<Clock::time_point> first;
  Clock::time_point last;
  AnswerStream stream([&](const AnswerPart& part) {
    last = Clock::now();
    if (!first) first = last;
    screen_.show(part);
    if (screen_.is_closed()) setup_.stop = true;
  });
  const auto answer = http_call(
      setup_.server,
      {.method = "POST", .path = "/v1/chat/completions", .body = request_body(), .stop = &setup_.stop},
      [&](std::string_view bytes) { stream.feed(bytes); });
  stream.finish();
  screen_.end();
  if (setup_.stop && !stream.ended()) {
    Message partial = stream.message();
    partial.calls.clear();  // nobody will give their results
    const bool empty = partial.content.empty() && partial.reasoning.empty();
    if (!empty) conversation_.answer(std::move(partial));
    screen_.note(empty ? "stopped before an answer came" : "stopped; what came is kept");
    return Ok{};
  }
  if (!answer.ok()) return answer.error();
  if (answer->status != 200 || !stream.error().empty() || !stream.ended())
    return failure(answer->status, stream.error());
  conversation_.answer(stream.message());
  if (!setup_.interactive) return Ok{};
  if (conversation_.messages().back().calls.size() < stream.message().calls.size())
    screen_.note("a call was cut off and is left out");
  if (stream.finish_reason() == "length")
    screen_.note("the answer was cut: --max-tokens or the model's context is used up");
  if (stream.usage()) screen_.note(usage_line(*stream.usage(), last - first.value_or(last)));
  return Ok{};
}

Error Session::failure(int status, const std::string& words) const {
  const char* again = setup_.interactive ? "/retry asks again" : "try again later";
  const std::string said = words.empty() ? "" : ": " + words;
  switch (status) {
    case 200:
      return {Errc::kIo, words.empty()
                             ? strf("the answer was cut: the server closed the connection; {}", again)
                             : strf("the server gave up: {}; {}", words, again)};
    case 401:
    case 403:
      return {Errc::kIo,
              strf("the server wants another key ({}{}): --api-key KEY or SPARROW_API_KEY", status, said)};
    case 404:
      return {Errc::kIo,
              strf("not found (404{}): --model asks for another model, --url another server", said)};
    case 429:
    case 503:
      return {Errc::kBusy, strf("the server is busy ({}{}): {}", status, said, again)};
    default:
      return {Errc::kIo, strf("the server refused ({}{})", status, said)};
  }
}

bool Session::ask_for_results(const std::vector<ToolCall>& calls) {
  bool broke_off = false;
  if (setup_.interactive)
    screen_.note("Type the result of each call, as the tool would give it. Ctrl-C breaks off.");
  for (const ToolCall& call : calls) {
    UserInput input{UserInput::Kind::kEnd};
    if (!broke_off) input = setup_.read(strf("{}> ", terminal_line(call.name)));
    broke_off |= input.kind != UserInput::Kind::kText;
    conversation_.give_result(call.id, broke_off ? kNoResult : input.text);
  }
  return !broke_off;
}

}  // namespace sparrow::cli
