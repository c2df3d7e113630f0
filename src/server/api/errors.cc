// SPDX-License-Identifier: Apache-2.0
#include "server/api/errors.h"

#include "base/json/json_writer.h"

namespace sparrow {
namespace {

constexpr int kOverloaded = 529;

std::string_view anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
    case kOverloaded:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

bool asks_anthropic(const HttpRequest& request) {
  const std::string_view messages = "/v1/messages";
  return request.headers.find("anthropic-version") ||
         (request.path.starts_with(messages) &&
          (request.path.size() == messages.size() || request.path[messages.size()] == '/'));
}

std::string anthropic_error_json(const ApiError& error, std::string_view request_id) {
  JsonWriter json;
  json.begin_object().key("type").string("error").key("error").begin_object();
  json.key("type").string(anthropic_type(error.status)).key("message").string(error.message);
  // By this code clients know that they may ask again without the field.
  if (error.param == "thread")
    json.key("details").begin_object().key("error_code").string("thread_unsupported_request").end_object();
  json.end_object();
  json.key("request_id").string(request_id).end_object();
  return json.take();
}

HttpResponse error_response_to(const HttpRequest& request, const ApiError& error) {
  if (!asks_anthropic(request)) return error_response(error);
  // A full server has a status of its own there: 429 is about the limits of a key.
  const bool is_full = error.status == 503 || (error.status == 429 && error.is_overload);
  return {
      .status = is_full ? kOverloaded : error.status,
      .body = anthropic_error_json(
          {.status = is_full ? kOverloaded : error.status, .message = error.message, .param = error.param},
          request.request_id)};
}

}  // namespace sparrow
