// SPDX-License-Identifier: Apache-2.0
// `sparrow chat`: a conversation with a server, in a terminal or through a pipe.
#include "cli/chat/chat.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "base/json/json.h"
#include "base/strf.h"
#include "cli/chat/http_client.h"
#include "cli/chat/session.h"
#include "cli/terminal/history.h"
#include "cli/terminal/line_editor.h"
#include "cli/terminal/raw_terminal.h"

namespace sparrow::cli {
namespace {

std::atomic<bool> interrupted{false};

void on_interrupt(int) {
  interrupted = true;
}

Result<std::string> first_model(const HttpServerAddress& server) {
  std::string body;
  const HttpAnswer answer =
      SPARROW_TRY(http_call(server, {.path = "/v1/models"}, [&](std::string_view piece) { body += piece; }));
  if (answer.status == 401 || answer.status == 403)
    return Error{Errc::kInvalidArgument,
                 strf("the server wants a key ({}): --api-key KEY or SPARROW_API_KEY", answer.status)};
  const auto document = JsonDocument::parse(body, "/v1/models");
  if (answer.status == 200 && document.ok())
    if (const auto data = document->root().find("data"); data && data->is_array() && data->size() > 0)
      return data->element(0).string_or("id", "");
  return Error{Errc::kIo, strf("{} has no list of models at {}/v1/models (status {}): check --url, or say "
                               "--model NAME",
                               server.url.authority(), server.url.path, answer.status)};
}

Result<HttpServerAddress> server_of(const ChatOptions& options) {
  HttpServerAddress server{.url = SPARROW_TRY(parse_http_url(options.url)),
                           .trust = {.ca_file = options.cacert, .insecure = options.insecure},
                           .api_key = options.api_key};
  const char* from_environment = std::getenv("SPARROW_API_KEY");
  if (server.api_key.empty() && from_environment) server.api_key = from_environment;
  return server;
}

void take_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;  // no SA_RESTART: reads and waits end with it
  ::sigaction(SIGINT, &action, nullptr);
}

Status converse(const ChatOptions& options) {
  const HttpServerAddress server = SPARROW_TRY(server_of(options));
  const bool interactive = ::isatty(STDIN_FILENO) != 0 && !options.one_turn;
  ::signal(SIGPIPE, SIG_IGN);  // a server that goes away is an error like others
  Session::Setup setup{.options = options,
                       .server = server,
                       .model = options.model.empty() ? SPARROW_TRY(first_model(server)) : options.model,
                       .interactive = interactive,
                       .read = {},
                       .stop = interrupted};
  // From here on there is something to go back to. In a pipe Ctrl-C ends the program.
  if (interactive) take_interrupts();
  LineReader reader(STDIN_FILENO, interrupted);
  const auto terminal =
      interactive
          ? RawTerminal::open(STDIN_FILENO, ::isatty(STDERR_FILENO) != 0 ? STDERR_FILENO : STDOUT_FILENO)
          : nullptr;
  if (!terminal) {
    setup.read = [&](std::string_view prompt) {
      if (options.one_turn) return reader.read_all();
      if (interactive) std::fputs(std::string(prompt).c_str(), stderr);
      return reader.read();
    };
    return Session(std::move(setup)).run();
  }
  History history;
  if (const auto file = state_file("chat_history"); !file.empty())
    if (const Status kept = history.load(file); !kept.ok())
      std::fputs(strf("sparrow: {}\n", kept.error().message).c_str(), stderr);
  LineEditor editor(*terminal, history);
  setup.read = [&](std::string_view prompt) {
    UserInput input = editor.read(prompt);
    if (input.kind == UserInput::Kind::kText) history.add(input.text);
    return input;
  };
  return Session(std::move(setup)).run();
}

}  // namespace

Status run_chat(const ChatOptions& options) {
  const Status status = converse(options);
  if (status.ok()) return Ok{};
  // The message may quote the server.
  return Error{status.error().code, terminal_line(status.error().message)};
}

}  // namespace sparrow::cli
