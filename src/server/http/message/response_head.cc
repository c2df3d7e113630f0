// SPDX-License-Identifier: Apache-2.0
#include "server/http/message/response_head.h"

#include <charconv>

#include "base/strf.h"

namespace sparrow {

namespace {

void append_field(std::string& out, std::string_view name, std::string_view value) {
  out += name;
  out += ": ";
  for (const char c : value) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  out += "\r\n";
}

void append_number(std::string& out, size_t value, int base) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value, base).ptr;
  out.append(digits, end);
}

}  // namespace

void append_response_head(std::string& out, const ResponseHead& head, const HttpHeaders& headers,
                          const HttpHeaders& more_headers) {
  out += "HTTP/1.1 ";
  append_number(out, static_cast<size_t>(head.status), 10);
  out += ' ';
  out += reason_phrase(head.status);
  out += "\r\n";
  append_field(out, "Date", head.date);
  if (!head.content_type.empty()) append_field(out, "Content-Type", head.content_type);
  if (head.content_length) {
    out += "Content-Length: ";
    append_number(out, *head.content_length, 10);
    out += "\r\n";
  }
  if (head.chunked) out += "Transfer-Encoding: chunked\r\n";
  if (!head.keep_alive)
    out += "Connection: close\r\n";
  else if (head.to_http_1_0)
    out += "Connection: keep-alive\r\n";
  if (!head.request_id.empty()) append_field(out, "X-Request-Id", head.request_id);
  for (const auto& [name, value] : headers) append_field(out, name, value);
  for (const auto& [name, value] : more_headers) append_field(out, name, value);
  out += "\r\n";
}

void append_chunk(std::string& out, std::string_view chunk) {
  append_number(out, chunk.size(), 16);
  out += "\r\n";
  out += chunk;
  out += "\r\n";
}

std::string http_date(std::time_t seconds) {
  // strftime's names follow the locale; HTTP's do not.
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm t{};
  gmtime_r(&seconds, &t);
  return strf("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[t.tm_wday], t.tm_mday, kMonths[t.tm_mon],
              t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
}

}  // namespace sparrow
