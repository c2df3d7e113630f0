// SPDX-License-Identifier: Apache-2.0
// The table of routes, and what is checked before a body is read.
#include <algorithm>

#include "base/utf8.h"
#include "server/anthropic/messages.h"
#include "server/api/errors.h"
#include "server/describe/wrong_path.h"
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

// Browsers ask before a page of another origin may post.
bool asks_for_a_page(const HttpRequest& request) {
  return request.method == "OPTIONS" && request.headers.find("Origin") != nullptr;
}

bool path_fits(std::string_view path, std::string_view pattern) {
  const size_t gap = pattern.find_first_of("{*");
  if (gap == pattern.npos) return path == pattern;
  if (!path.starts_with(pattern.substr(0, gap))) return false;
  path.remove_prefix(gap);
  if (pattern[gap] == '*') return !path.empty();
  const size_t segment = std::min(path.find('/'), path.size());
  return segment > 0 && path.substr(segment) == pattern.substr(gap + 2);
}

bool method_fits(std::string_view asked, std::string_view method) {
  return asked == method || (asked == "HEAD" && method == "GET");
}

}  // namespace

std::span<const Service::Route> Service::routes() {
  constexpr bool kOpen = true;
  const auto document = [](Operation operation, std::string (Service::*made)() const) {
    return Route{operation, &Service::show, nullptr, made};
  };
  static const Route kRoutes[] = {
      {{"POST", "/v1/chat/completions", "Answer a conversation", "ChatCompletionRequest", "ChatCompletion"},
       &Service::complete,
       &openai::kChatApi},
      {{"POST", "/v1/completions", "Continue a text", "CompletionRequest", "Completion"},
       &Service::complete,
       &openai::kCompletionApi},
      {{"POST", "/v1/responses", "Answer, as OpenAI's Responses", "Any", "Any"},
       &Service::complete,
       &responses::kResponsesApi},
      {{"POST", "/v1/responses/input_tokens", "Tokens of such a request", "Any", "Any"},
       &Service::count,
       &responses::kCountApi},
      {{"GET", "/v1/responses/{}", "A stored response", "", "Any"}, &Service::show_response},
      {{"DELETE", "/v1/responses/{}", "Forget it", "", "Any"}, &Service::delete_response},
      {{"POST", "/v1/responses/{}/cancel", "End one in the background", "", "Any"},
       &Service::cancel_response},
      {{"GET", "/v1/responses/{}/input_items", "What it answers", "", "Any"}, &Service::list_input_items},
      {{"POST", "/v1/messages", "Answer, as Anthropic's Messages", "Any", "Any"},
       &Service::complete,
       &anthropic::kMessagesApi},
      {{"POST", "/v1/messages/count_tokens", "Tokens of such a request", "Any", "Any"},
       &Service::count,
       &anthropic::kCountApi},
      document({"GET", "/v1/models", "Names of the model", "", "ModelList"}, &Service::models_json),
      {{"GET", "/v1/models/*", "One of them", "", "Model"}, &Service::show_model},
      {{"POST", "/tokenize", "Text to ids", "TokenizeRequest", "Tokens"},
       &Service::count,
       &openai::kTokenizeApi},
      {{"POST", "/detokenize", "Ids to text", "DetokenizeRequest", "Text"}, &Service::detokenize},
      document({"GET", "/server_info", "How the model is run", "", "Any"}, &Service::server_json),
      document({"GET", "/tokenizer_info", "What the tokenizer knows", "", "Any"}, &Service::tokenizer_json),
      {{"GET", "/health", "Whether the process works", "", "Any", kOpen}, &Service::show_health},
      {{"GET", "/ping", "The same", "", "Any", kOpen}, &Service::show_health},
      {{"GET", "/ready", "Whether it takes requests", "", "Any", kOpen}, &Service::show_readiness},
      document({"GET", "/load", "Requests under way", "", "Any", kOpen}, &Service::load_json),
      document({"GET", "/version", "The program's version", "", "Any", kOpen}, &Service::version_json),
      {{"GET", "/metrics", "Prometheus' metrics", "", "", kOpen}, &Service::show_metrics},
      document({"GET", "/openapi.json", "This description", "", "Any", kOpen}, &Service::description_json),
      document({"GET", "/", "What there is", "", "Any", kOpen}, &Service::greeting_json),
  };
  return kRoutes;
}

// A path that has a name of its own is no place of a pattern.
const Service::Route* Service::find_route(const HttpRequest& request, std::string& allowed) {
  const bool named =
      std::ranges::any_of(routes(), [&](const Route& route) { return route.operation.path == request.path; });
  for (const Route& route : routes()) {
    const std::string_view path = route.operation.path;
    if (named ? path != request.path : !path_fits(request.path, path)) continue;
    if (method_fits(request.method, route.operation.method)) return &route;
    allowed += (allowed.empty() ? "" : ", ") + std::string(route.operation.method);
  }
  return nullptr;
}

std::string Service::help(std::string_view path) {
  std::vector<std::string_view> known;
  for (const Route& route : routes()) known.push_back(route.operation.path);
  return help_with_path(path, known);
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
        request, {.status = 404,
                  .message = strf("there is nothing at {}{}", excerpt(request.path), help(request.path))});
  if (!route) {
    HttpResponse response = error_response_to(
        request, {.status = 405,
                  .message = strf("{} takes {}, not {}{}", excerpt(request.path), allowed, request.method,
                                  asks_for_a_page(request) ? "; --allowed-origins lets web pages in" : "")});
    response.headers.add("Allow", allowed);
    return response;
  }
  if (request.method == "POST" && !route->operation.body.empty() && !says_json(request))
    return error_response_to(
        request, {.status = 415, .message = "the body must be sent as Content-Type: application/json"});
  if (route->operation.is_open || key_of(request)) return std::nullopt;
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
