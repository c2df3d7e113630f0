// SPDX-License-Identifier: Apache-2.0
// The commands of a chat: lines that start with a slash.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/strf.h"
#include "base/text/suggest.h"
#include "cli/chat/session.h"

namespace sparrow::cli {
namespace {

constexpr const char* kHelp =
    "/help         show this list\n"
    "/clear        forget what was said; the system text and the tools stay\n"
    "/system TEXT  what the model is told first; without TEXT: show it; - for nothing\n"
    "/tools FILE   let the model call tools: a JSON list in OpenAI's format; - for none.\n"
    "              Calls are shown, and you type their results.\n"
    "/image FILE   an image that goes with your next message; several go one after another\n"
    "/retry        ask for the last answer again\n"
    "/save FILE    write the conversation as a request: curl -d @FILE sends it\n"
    "/quit         end, as does Ctrl-D\n"
    "\n"
    "Enter sends. Alt-Enter, or \\ and Enter, starts a new line. Pasted lines are one turn.\n"
    "Up and Down find earlier lines that start with what you typed, Ctrl-R those that\n"
    "contain it. Ctrl-C stops an answer or empties the line. // at the start of a line\n"
    "sends it as text with one /.\n";

const std::vector<std::string> kNames{"/help",  "/clear", "/system", "/tools", "/image",
                                      "/retry", "/save",  "/quit",   "/new",   "/exit"};

std::filesystem::path file_of(std::string_view argument) {
  const char* home = std::getenv("HOME");
  if (argument.starts_with("~/") && home) return std::filesystem::path(home) / argument.substr(2);
  return argument;
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

}  // namespace

CommandLine split_command(std::string_view line) {
  const size_t end = std::min(line.find_first_of(" \t\r\n"), line.size());
  const std::string_view name = line.substr(0, end);
  // A path or a second slash makes it text.
  if (!name.starts_with('/') || name.size() < 2 || name.find('/', 1) != std::string_view::npos) return {};
  if (!std::all_of(name.begin() + 1, name.end(), [](char c) { return c >= 'a' && c <= 'z'; })) return {};
  return {name, trimmed(line.substr(end))};
}

Status Session::run_command(std::string_view name, std::string_view argument) {
  if (name == "/help") {
    std::fputs(kHelp, stderr);
  } else if (name == "/clear" || name == "/new") {
    conversation_.clear();
    if (setup_.interactive) screen_.note("a new conversation");
  } else if (name == "/system") {
    if (!argument.empty()) conversation_.set_system(argument == "-" ? "" : std::string(argument));
    if (setup_.interactive)
      screen_.note(conversation_.system().empty() ? "no system text" : "system: " + conversation_.system());
  } else if (name == "/tools") {
    return load_tools(argument);
  } else if (name == "/image") {
    return attach_image(argument);
  } else if (name == "/retry") {
    if (conversation_.take_back_answer()) return talk();
    return Error{Errc::kInvalidArgument, "/retry: nothing has been asked yet"};
  } else if (name == "/save") {
    return save(argument);
  } else if (name == "/quit" || name == "/exit") {
    over_ = true;
  } else {
    const std::string nearest = nearest_word(name, kNames);
    return Error{Errc::kInvalidArgument,
                 strf("unknown command {}{}; /help lists them, // sends a line that starts with /", name,
                      nearest.empty() ? "" : ", did you mean " + nearest + "?")};
  }
  return Ok{};
}

Status Session::load_tools(std::string_view argument) {
  if (argument == "-") {
    conversation_.set_tools("", {});
  } else if (!argument.empty()) {
    ToolsFile tools = SPARROW_TRY(read_tools_file(file_of(argument)));
    conversation_.set_tools(std::move(tools.json), std::move(tools.names));
  }
  if (!setup_.interactive) return Ok{};
  std::string names;
  for (const std::string& name : conversation_.tools()) names += (names.empty() ? "" : ", ") + name;
  screen_.note(names.empty() ? "no tools" : "tools: " + names);
  return Ok{};
}

Status Session::attach_image(std::string_view argument) {
  if (argument.empty()) return Error{Errc::kInvalidArgument, "/image wants a file: /image screen.png"};
  conversation_.attach(SPARROW_TRY(read_image_file(file_of(argument))));
  if (setup_.interactive) screen_.note(strf("{} goes with your next message", argument));
  return Ok{};
}

Status Session::save(std::string_view argument) {
  if (argument.empty()) return Error{Errc::kInvalidArgument, "/save wants a file: /save chat.json"};
  const std::string file = file_of(argument).string();
  std::error_code ignored;
  if (file != saved_ && std::filesystem::exists(file, ignored))
    return Error{Errc::kInvalidArgument, strf("{} exists: /save wants a new file", file)};
  JsonWriter json(JsonWriter::Style::kSpaced);
  json.begin_object().key("model").string(setup_.model);
  conversation_.write(json);
  json.end_object();
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(std::fopen(file.c_str(), "w"), &std::fclose);
  if (!out || std::fputs((json.take() + "\n").c_str(), out.get()) < 0 || std::fflush(out.get()) != 0)
    return Error{Errc::kIo, strf("{} cannot be written: {}", file, std::strerror(errno))};
  saved_ = file;
  if (setup_.interactive)
    screen_.note(strf("{} messages written to {}", conversation_.messages().size(), file));
  return Ok{};
}

}  // namespace sparrow::cli
