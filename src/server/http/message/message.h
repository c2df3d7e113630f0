// SPDX-License-Identifier: Apache-2.0
// What travels over HTTP: one request as it was read, one response as it will be written, and the shape that
// every error has. Plain data.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sparrow {

// Fields in the order of the message; names compare without regard to case.
class HttpHeaders {
 public:
  using Field = std::pair<std::string, std::string>;

  void add(std::string name, std::string value) { fields_.emplace_back(std::move(name), std::move(value)); }
  // The value of the first field of this name; nullptr where there is none.
  const std::string* find(std::string_view name) const;
  int count(std::string_view name) const;
  size_t size() const { return fields_.size(); }
  auto begin() const { return fields_.begin(); }
  auto end() const { return fields_.end(); }

 private:
  std::vector<Field> fields_;
};

struct HttpRequest {
  std::string method;  // upper case, one of the methods that HTTP defines
  std::string path;    // starts with '/'; percent-decoded, except %2F and %25; no "." or ".." segments
  std::string query;   // what follows '?', as it was sent
  HttpHeaders headers;
  std::string body;
  std::string request_id;  // the client's X-Request-Id where it was usable, else a fresh one
  std::string peer;        // "127.0.0.1:51234"
  std::chrono::steady_clock::time_point received_at;  // when its first byte was seen
  bool http_1_0 = false;

  bool is(std::string_view wanted_method, std::string_view wanted_path) const {
    return method == wanted_method && path == wanted_path;
  }
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;  // beyond Content-Type, Content-Length, Connection, Date and X-Request-Id
};

// The shape of OpenAI's errors. An empty param or code becomes null.
struct ApiError {
  int status;
  std::string message;
  std::string type = {};  // empty: the usual one for the status
  std::string param = {};
  std::string code = {};
  bool is_overload = false;  // of 429: the server is full, whoever asks; else this key is at its limit
};

// {"error":{"message":...,"type":...,"param":...,"code":...}}
std::string error_json(const ApiError& error);
HttpResponse error_response(const ApiError& error);

// Names of fields compare without regard to case.
bool same_field_name(std::string_view a, std::string_view b);

// "Not Found" for 404; "Unknown" for a status that we never send.
std::string_view reason_phrase(int status);

// The value of `name` in a query string, percent-decoded; nullopt where it is absent or badly encoded.
std::optional<std::string> query_value(std::string_view query, std::string_view name);

}  // namespace sparrow
