// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/builtins/split.h"

#include <algorithm>

#include "text/jinja/value/unicode.h"

namespace sparrow::jinja {

namespace {

constexpr size_t kNowhere = std::string_view::npos;

}  // namespace

std::vector<Value> split_blanks(std::string_view text, int64_t limit) {
  std::vector<Value> parts;
  for (text = strip_left(text, nullptr); !text.empty(); text = strip_left(text, nullptr)) {
    if (limit-- == 0) {
      parts.push_back(text_value(text));
      break;
    }
    size_t end = 0;
    while (end < text.size() && !is_space(first_char(text.substr(end)))) end += char_bytes(text.substr(end));
    parts.push_back(text_value(text.substr(0, end)));
    text.remove_prefix(end);
  }
  return parts;
}

std::vector<Value> rsplit_blanks(std::string_view text, int64_t limit) {
  std::vector<Value> parts;
  for (text = strip_right(text, nullptr); !text.empty(); text = strip_right(text, nullptr)) {
    if (limit-- == 0) {
      parts.push_back(text_value(text));
      break;
    }
    size_t start = text.size();
    while (start > 0) {
      size_t before = start - 1;
      while (before > 0 && (static_cast<unsigned char>(text[before]) & 0xc0u) == 0x80u) --before;
      if (is_space(first_char(text.substr(before)))) break;
      start = before;
    }
    parts.push_back(text_value(text.substr(start)));
    text = text.substr(0, start);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<Value> split_at(std::string_view text, std::string_view sep, int64_t limit) {
  std::vector<Value> parts;
  for (size_t at = text.find(sep); at != kNowhere && limit != 0; at = text.find(sep), --limit) {
    parts.push_back(text_value(text.substr(0, at)));
    text.remove_prefix(at + sep.size());
  }
  parts.push_back(text_value(text));
  return parts;
}

std::vector<Value> rsplit_at(std::string_view text, std::string_view sep, int64_t limit) {
  std::vector<Value> parts;
  for (size_t at = text.rfind(sep); at != kNowhere && limit != 0; at = text.rfind(sep), --limit) {
    parts.push_back(text_value(text.substr(at + sep.size())));
    text = text.substr(0, at);
  }
  parts.push_back(text_value(text));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace sparrow::jinja
