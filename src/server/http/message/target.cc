// SPDX-License-Identifier: Apache-2.0
#include "server/http/message/target.h"

#include <algorithm>

#include "base/utf8.h"

namespace sparrow {

namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool has_dot_segment(std::string_view path) {
  while (!path.empty()) {
    const size_t slash = path.find('/');
    const std::string_view segment = path.substr(0, slash);
    if (segment == "." || segment == "..") return true;
    if (slash == std::string_view::npos) break;
    path.remove_prefix(slash + 1);
  }
  return false;
}

// "http://host/path" -> host, and the rest starts with '/', '?' or is empty.
bool take_authority(std::string_view& text, std::string& host) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!text.starts_with(scheme)) continue;
    text.remove_prefix(scheme.size());
    const size_t end = std::min(text.find_first_of("/?"), text.size());
    host = text.substr(0, end);
    text.remove_prefix(end);
    return !host.empty() && is_valid_host(host);
  }
  return false;
}

}  // namespace

std::optional<std::string> percent_decoded(std::string_view text, PercentDecode how) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '+' && how == PercentDecode::kQuery) c = ' ';
    if (c == '%') {
      const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
      if (high < 0 || low < 0) return std::nullopt;
      i += 2;
      c = static_cast<char>(high * 16 + low);
      if (how == PercentDecode::kPath && (c == '/' || c == '%')) {
        out += c == '/' ? "%2F" : "%25";
        continue;
      }
    }
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return std::nullopt;
    out += c;
  }
  if (valid_utf8_prefix(out) != out.size()) return std::nullopt;
  return out;
}

bool is_valid_host(std::string_view host) {
  return std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("-._~:[]%!$&'()*+;=").find(c) != std::string_view::npos;
  });
}

std::optional<Target> parse_target(std::string_view text, std::string_view method) {
  if (text == "*") return method == "OPTIONS" ? std::optional(Target{.path = "*"}) : std::nullopt;
  const bool printable = std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (!printable || text.find('#') != std::string_view::npos) return std::nullopt;

  Target target;
  if (!text.starts_with('/') && !take_authority(text, target.host)) return std::nullopt;
  const size_t question = text.find('?');
  if (question != std::string_view::npos) target.query = text.substr(question + 1);
  const std::string_view raw_path = text.substr(0, question);
  if (raw_path.empty()) {
    target.path = "/";
    return target;
  }
  const auto path = percent_decoded(raw_path, PercentDecode::kPath);
  if (!path || has_dot_segment(*path)) return std::nullopt;
  target.path = *path;
  return target;
}

}  // namespace sparrow
