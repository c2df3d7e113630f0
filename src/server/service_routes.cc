// SPDX-License-Identifier: Apache-2.0
// The table of routes, and what is checked before a body is read.
#include <algorithm>

#include "base/utf8.h"
#include "server/anthropic/messages.h"
#include "server/api/errors.h"
#include "server/responses/responses.h"
#include "server/service.h"

namespace sparrow {
namespace {

constexpr size_t kMaxEchoedBytes = 200;

// Browsers let any page post plain text and forms to any address, also to one that only this machine can
// reach; JSON they do not.
bool says_json(const HttpRequest& request) {
  const std::string* type = request.headers.find("Content-Type");
  if (!type) return false;
  const std::string_view media = std::string_view(*type).substr(0, type->find_first_of("; \t"));
  return same_field_name(media, "application/json");
}

// "localhost" of "LocalHost.:8000", "[::1]" of "[::1]:8000".
std::string_view name_of_host(std::string_view host) {
  std::string_view name = host.substr(0, host.starts_with('[') ? host.find(']') + 1 : host.find(':'));
  if (name.ends_with('.')) name.remove_suffix(1);
  return name;
}

std::optional<HttpResponse> check_host(const HttpRequest& request, const std::vector<std::string>& allowed) {
  const std::string* host = request.headers.find("Host");
  if (!host || allowed.empty()) return std::nullopt;  // browsers always send one
  std::string names;
  for (const std::string& name : allowed) {
    if (name == "*" || same_field_name(name_of_host(*host), name)) return std::nullopt;
    names += (names.empty() ? "" : ", ") + name;
  }
  return error_response_to(request,
                           {.status = 403,
                            .message = strf("this server answers to {}, and the Host of this request is {}; "
                                            "--allowed-hosts adds names",
                                            names, json_quoted(host->substr(0, kMaxEchoedBytes))),
                            .code = "host_not_allowed"});
}

// "*" at the end of a pattern is whatever follows.
bool path_fits(std::string_view path, std::string_view pattern) {
  if (!pattern.ends_with('*')) return path == pattern;
  pattern.remove_suffix(1);
  return path.starts_with(pattern) && path.size() > pattern.size();
}

bool method_fits(std::string_view asked, std::string_view method) {
  return asked == method || (asked == "HEAD" && method == "GET");
}

}  // namespace

std::span<const Service::Route> Service::routes() {
  static constexpr Route kRoutes[] = {
      {"POST", "/v1/chat/completions", &Service::complete, &openai::kChatApi},
      {"POST", "/v1/completions", &Service::complete, &openai::kCompletionApi},
      {"POST", "/v1/responses", &Service::complete, &responses::kResponsesApi},
      {"POST", "/v1/messages", &Service::complete, &anthropic::kMessagesApi},
      {"POST", "/v1/messages/count_tokens", &Service::count_tokens},
      {"GET", "/v1/models", &Service::list_models},
      {"GET", "/v1/models/*", &Service::show_model},
      {"POST", "/tokenize", &Service::tokenize},
      {"POST", "/detokenize", &Service::detokenize},
      {.method = "GET", .path = "/health", .handle = &Service::show_health, .open = true},
      {.method = "GET", .path = "/ready", .handle = &Service::show_readiness, .open = true},
      {.method = "GET", .path = "/version", .handle = &Service::show_version, .open = true},
      {.method = "GET", .path = "/metrics", .handle = &Service::show_metrics, .open = true},
  };
  return kRoutes;
}

const Service::Route* Service::find_route(const HttpRequest& request, std::string& allowed) {
  for (const Route& route : routes()) {
    if (!path_fits(request.path, route.path)) continue;
    if (method_fits(request.method, route.method)) return &route;
    allowed += (allowed.empty() ? "" : ", ") + std::string(route.method);
  }
  return nullptr;
}

std::shared_ptr<const ApiKey> Service::key_of(const HttpRequest& request) const {
  if (auto key = keys_.authenticate(request.headers.find("Authorization"))) return key;
  const std::string* const given = request.headers.find("x-api-key");  // how Anthropic's clients say it
  if (!given) return nullptr;
  const std::string authorization = "Bearer " + *given;
  return keys_.authenticate(&authorization);
}

std::optional<HttpResponse> Service::check_head(const HttpRequest& request) const {
  if (auto refusal = check_host(request, options_.allowed_hosts)) return refusal;
  std::string allowed;
  const Route* const route = find_route(request, allowed);
  if (!route && allowed.empty())
    return error_response_to(
        request, {.status = 404, .message = strf("there is nothing at {}", excerpt(request.path))});
  if (!route) {
    HttpResponse response = error_response_to(
        request, {.status = 405,
                  .message = strf("{} takes {}, not {}", excerpt(request.path), allowed, request.method)});
    response.headers.add("Allow", allowed);
    return response;
  }
  if (request.method == "POST" && !says_json(request))
    return error_response_to(
        request, {.status = 415, .message = "the body must be sent as Content-Type: application/json"});
  if (route->open || key_of(request)) return std::nullopt;
  HttpResponse response = error_response_to(
      request, {.status = 401,
                .message = asks_anthropic(request) ? "a valid API key is needed: x-api-key: KEY"
                                                   : "a valid API key is needed: Authorization: Bearer KEY",
                .code = "invalid_api_key"});
  response.headers.add("WWW-Authenticate", "Bearer");
  return response;
}

net::awaitable<void> Service::handle(Exchange& exchange) {
  std::string allowed;
  const Route* const route = find_route(exchange.request(), allowed);
  SPARROW_CHECK(route);  // check_head() has refused all others
  co_await (this->*route->handle)(exchange, *route);
}

}  // namespace sparrow
