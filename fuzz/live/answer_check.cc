// SPDX-License-Identifier: Apache-2.0
#include "answer_check.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "base/json/json.h"
#include "base/strf.h"

namespace sparrow::fuzz {
namespace {

using State = AnswerCheck::State;

AnswerCheck wrong(std::string why) {
  return {.state = State::kWrong, .wrong = std::move(why)};
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
  });
}

std::optional<size_t> number(std::string_view text, int base) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct Head {
  std::string type;
  std::optional<size_t> length;
  bool chunked = false;
};

// Empty: right. Lines without their ends; the status line has been read.
std::string read_field(std::string_view line, Head& head, AnswerCheck& check) {
  const size_t colon = line.find(": ");
  if (colon == line.npos || !is_name(line.substr(0, colon))) return strf("a bad field: {}", line);
  std::string name(line.substr(0, colon));
  for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  const std::string_view value = line.substr(colon + 2);
  if (std::any_of(value.begin(), value.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
    return strf("a control character in {}", name);
  if (name == "content-type") head.type = value;
  if (name == "connection" && value == "close") check.closes = true;
  if (name == "content-length") {
    if (head.length || !(head.length = number(value, 10))) return strf("a bad length: {}", value);
  }
  if (name == "transfer-encoding") {
    if (value != "chunked" || head.chunked) return strf("a bad encoding: {}", value);
    head.chunked = true;
  }
  return "";
}

// The decoded body and the bytes it took; nullopt: more must come, or `error` says what is wrong.
std::optional<size_t> read_chunks(std::string_view bytes, std::string& body, std::string& error) {
  size_t at = 0;
  for (;;) {
    const size_t end = bytes.find("\r\n", at);
    if (end == bytes.npos) return std::nullopt;
    const auto size = number(bytes.substr(at, end - at), 16);
    if (!size) {
      error = "a bad size of a chunk";
      return std::nullopt;
    }
    at = end + 2;
    if (bytes.size() < at + *size + 2) return std::nullopt;
    body += bytes.substr(at, *size);
    if (bytes.substr(at + *size, 2) != "\r\n") {
      error = "a chunk without its end";
      return std::nullopt;
    }
    at += *size + 2;
    if (*size == 0) return at;
  }
}

std::string check_error(const Json& root) {
  const auto error = root.find("error");
  if (!error) return "an error without its object";
  const auto message = error->find("message"), type = error->find("type");
  if (!message || message->string_view().empty() || !type || type->string_view().empty())
    return "an error without message or type";
  return "";
}

// Of streams whose events have names: each says its own, and the last one is one that may be.
std::string check_named_events(std::string_view body) {
  static constexpr std::array<std::string_view, 5> kLast = {"response.completed", "response.incomplete",
                                                            "response.failed", "message_stop", "error"};
  std::string last;
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    if (end == body.npos) return "an event without its end";
    const std::string_view event = body.substr(0, end);
    body.remove_prefix(end + 2);
    if (event.starts_with(":")) continue;
    const size_t line = event.find("\ndata: ");
    if (!event.starts_with("event: ") || line == event.npos) return "an event without a name or data";
    if (std::find(kLast.begin(), kLast.end(), last) != kLast.end()) return "an event after the last one";
    last = event.substr(7, line - 7);
    const auto document = JsonDocument::parse(event.substr(line + 7), "an event");
    if (!document.ok()) return document.error().message;
    if (const auto type = document->root().find("type"); !type || type->string_view() != last)
      return "an event of another type than its name";
  }
  return std::find(kLast.begin(), kLast.end(), last) != kLast.end() ? "" : "no last event";
}

std::string check_events(std::string_view body) {
  if (body.starts_with("event: ")) return check_named_events(body);
  bool done = false;
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    if (end == body.npos) return "an event without its end";
    const std::string_view event = body.substr(0, end);
    body.remove_prefix(end + 2);
    if (event.starts_with(":")) continue;
    if (done) return "an event after the last one";
    if (!event.starts_with("data: ")) return "an event that is no data";
    done = event == "data: [DONE]";
    if (done) continue;
    const auto document = JsonDocument::parse(event.substr(6), "an event");
    if (!document.ok()) return document.error().message;
    const Json root = document->root();
    if (root.find("error")) {
      if (const std::string error = check_error(root); !error.empty()) return error;
    } else if (const auto choices = root.find("choices");
               !choices || !choices->is_array() || !root.find("id")) {
      return "an event without choices or id";
    }
  }
  return done ? "" : "no [DONE]";
}

std::string check_body(const AnswerCheck& check, const Head& head, const std::string& body) {
  if (check.status >= 500 && check.status != 501 && check.status != 505 && check.status != 529)
    return strf("status {}", check.status);
  if (head.type.starts_with("text/event-stream")) return check_events(body);
  if (head.type.starts_with("text/plain")) return check.status == 200 ? "" : "an error that is not JSON";
  if (body.empty() && check.status < 300) return "";
  if (head.type != "application/json") return strf("a body of type {}", head.type);
  const auto document =
      JsonDocument::parse(body, "the answer", {.max_bytes = size_t{64} << 20, .max_depth = 64});
  if (!document.ok()) return document.error().message;
  const Json root = document->root();
  if (check.status >= 400) return check_error(root);
  if (root.find("object") && root.find("object")->string_view().ends_with("completion")) {
    const auto choices = root.find("choices");
    if (!choices || choices->size() == 0 || !root.find("usage"))
      return "a completion without choices or usage";
  }
  return "";
}

}  // namespace

AnswerCheck check_answer(std::string_view bytes, bool to_head) {
  constexpr std::string_view kVersion = "HTTP/1.1 ";
  if (!bytes.starts_with(kVersion.substr(0, std::min(bytes.size(), kVersion.size()))))
    return wrong("not HTTP/1.1");
  const size_t head_end = bytes.find("\r\n\r\n");
  if (head_end == bytes.npos) return {};
  std::string_view lines = bytes.substr(0, head_end + 2);
  AnswerCheck check;
  const auto status = number(lines.substr(kVersion.size(), 3), 10);
  if (!status || *status < 100 || lines[kVersion.size() + 3] != ' ') return wrong("a bad status line");
  check.status = static_cast<int>(*status);
  Head head;
  for (size_t end = lines.find("\r\n"); lines.remove_prefix(end + 2), !lines.empty();) {
    end = lines.find("\r\n");
    if (std::string error = read_field(lines.substr(0, end), head, check); !error.empty())
      return wrong(std::move(error));
  }
  check.is_stream = head.type.starts_with("text/event-stream");
  check.size = head_end + 4;
  const bool interim = check.status < 200;
  if (to_head || interim || check.status == 204) {
    check.state = State::kWhole;
    return check;
  }
  if (head.chunked == head.length.has_value()) return wrong("not one of length and chunks");
  std::string body;
  if (head.chunked) {
    std::string error;
    const auto size = read_chunks(bytes.substr(check.size), body, error);
    if (!error.empty()) return wrong(std::move(error));
    if (!size) return check;
    check.size += *size;
  } else {
    if (bytes.size() < check.size + *head.length) return check;
    body = bytes.substr(check.size, *head.length);
    check.size += *head.length;
  }
  if (std::string error = check_body(check, head, body); !error.empty()) return wrong(std::move(error));
  check.state = State::kWhole;
  return check;
}

}  // namespace sparrow::fuzz
