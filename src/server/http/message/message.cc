// SPDX-License-Identifier: Apache-2.0
#include "server/http/message/message.h"

#include <algorithm>

#include "base/json/json_writer.h"
#include "server/http/message/target.h"

namespace sparrow {

namespace {

std::string_view default_error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

}  // namespace

bool same_field_name(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [&](char x, char y) { return lower(x) == lower(y); });
}

const std::string* HttpHeaders::find(std::string_view name) const {
  for (const auto& [field, value] : fields_)
    if (same_field_name(field, name)) return &value;
  return nullptr;
}

int HttpHeaders::count(std::string_view name) const {
  return static_cast<int>(std::count_if(fields_.begin(), fields_.end(), [&](const Field& field) {
    return same_field_name(field.first, name);
  }));
}

std::string error_json(const ApiError& error) {
  JsonWriter writer;
  const auto string_or_null = [&](std::string_view key, std::string_view text) {
    writer.key(key);
    text.empty() ? writer.null() : writer.string(text);
  };
  writer.begin_object().key("error").begin_object();
  writer.key("message").string(error.message);
  writer.key("type").string(error.type.empty() ? default_error_type(error.status) : error.type);
  string_or_null("param", error.param);
  string_or_null("code", error.code);
  writer.end_object().end_object();
  return writer.take();
}

HttpResponse error_response(const ApiError& error) {
  return {.status = error.status, .body = error_json(error)};
}

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 529:
      return "Overloaded";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

std::optional<std::string> query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view item = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), item.size() + 1));
    const size_t equals = item.find('=');
    if (item.substr(0, equals) != name) continue;
    if (equals == std::string_view::npos) return "";
    return percent_decoded(item.substr(equals + 1), PercentDecode::kQuery);
  }
  return std::nullopt;
}

}  // namespace sparrow
