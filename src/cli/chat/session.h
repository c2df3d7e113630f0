// SPDX-License-Identifier: Apache-2.0
// Session: questions and commands in, answers out, until the user's side ends. An error ends it only if
// nobody is there to read it and go on.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>

#include "cli/chat/chat.h"
#include "cli/chat/conversation.h"
#include "cli/chat/http_client.h"
#include "cli/chat/screen.h"
#include "cli/terminal/line_reader.h"

namespace sparrow::cli {

class Session {
 public:
  struct Setup {
    const ChatOptions& options;
    HttpServerAddress server;
    std::string model;
    bool interactive;  // somebody types and reads
    // The next turn, or the result of a call: what the prompt asks for.
    std::function<UserInput(std::string_view prompt)> read;
    // Set by Ctrl-C while an answer comes in.
    std::atomic<bool>& stop;
  };
  explicit Session(Setup setup);

  Status run();

 private:
  // A turn: a command, or a question and all answers until the model calls no more tools.
  Status take_turn(const std::string& text);
  Status talk();
  Status receive_answer();
  // Asks for the result of each call. False: the user broke off.
  bool ask_for_results(const std::vector<ToolCall>& calls);
  std::string request_body() const;
  Error failure(int status, const std::string& words) const;

  // commands.cc
  Status run_command(std::string_view name, std::string_view argument);
  Status load_tools(std::string_view argument);
  Status save(std::string_view argument);
  Status attach_image(std::string_view argument);

  Setup setup_;
  Screen screen_;
  Conversation conversation_;
  std::string saved_;  // the file that /save wrote
  bool over_ = false;
};

// "/save chat.json" -> "/save", "chat.json"; an empty name if a line is not a command.
struct CommandLine {
  std::string_view name, argument;
};
CommandLine split_command(std::string_view line);

}  // namespace sparrow::cli
