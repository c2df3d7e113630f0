// SPDX-License-Identifier: Apache-2.0
// Routing, and the answers that are ready at once.
#include "server/service.h"

#include <random>

#include "base/json/json_writer.h"
#include "base/utf8.h"

namespace sparrow {
namespace {

constexpr std::string_view kModels = "/v1/models";
constexpr size_t kMaxEchoedBytes = 200;
// Threads that prepare requests, all but one of them also long ones: bodies that take tens of milliseconds.
constexpr int kWorkThreads = 3;
constexpr size_t kLongBytes = 256 << 10;

struct Route {
  std::string_view path, method;
  bool open;  // needs no key
};
constexpr Route kRoutes[] = {
    {"/v1/chat/completions", "POST", false},
    {"/v1/completions", "POST", false},
    {"/v1/models", "GET", false},
    {"/tokenize", "POST", false},
    {"/detokenize", "POST", false},
    {"/health", "GET", true},
    {"/ready", "GET", true},
    {"/version", "GET", true},
    {"/metrics", "GET", true},
};

const Route* find_route(const HttpRequest& request) {
  for (const Route& route : kRoutes)
    if (request.path == route.path) return &route;
  // One model by its name.
  return request.path.starts_with("/v1/models/") ? &kRoutes[2] : nullptr;
}

bool method_fits(const HttpRequest& request, const Route& route) {
  return request.method == route.method || (request.method == "HEAD" && route.method == "GET");
}

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
  return error_response({.status = 403,
                         .message = strf("this server answers to {}, and the Host of this request is {}; "
                                         "--allowed-hosts adds names",
                                         names, json_quoted(host->substr(0, kMaxEchoedBytes))),
                         .code = "host_not_allowed"});
}

int64_t now_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Service::Service(Engine& engine, openai::ServedModel model, const ApiKeys& keys, Metrics& metrics,
                 ServiceOptions options)
    : engine_(engine),
      model_(std::move(model)),
      keys_(keys),
      metrics_(metrics),
      options_(std::move(options)),
      counts_(metrics, engine, model_.names[0]),
      answers_(options_.answer_memory),
      created_(now_seconds()),
      work_(kWorkThreads, kLongBytes) {}

std::optional<HttpResponse> Service::check_head(const HttpRequest& request) const {
  if (auto refusal = check_host(request, options_.allowed_hosts)) return refusal;
  const Route* route = find_route(request);
  if (!route)
    return error_response({.status = 404, .message = strf("there is nothing at {}", excerpt(request.path))});
  if (!method_fits(request, *route)) {
    HttpResponse response = error_response(
        {.status = 405,
         .message = strf("{} takes {}, not {}", excerpt(request.path), route->method, request.method)});
    response.headers.add("Allow", std::string(route->method));
    return response;
  }
  if (request.method == "POST" && !says_json(request))
    return error_response(
        {.status = 415, .message = "the body must be sent as Content-Type: application/json"});
  if (route->open || keys_.authenticate(request.headers.find("Authorization"))) return std::nullopt;
  HttpResponse response = error_response({.status = 401,
                                          .message = "a valid API key is needed: Authorization: Bearer KEY",
                                          .code = "invalid_api_key"});
  response.headers.add("WWW-Authenticate", "Bearer");
  return response;
}

net::awaitable<void> Service::handle(Exchange& exchange) {
  const HttpRequest& request = exchange.request();
  if (request.path == "/v1/chat/completions") {
    co_await complete(exchange, openai::kChatApi);
  } else if (request.path == "/v1/completions") {
    co_await complete(exchange, openai::kCompletionApi);
  } else if (request.path == "/tokenize" || request.path == "/detokenize") {
    co_await convert(exchange);
  } else {
    HttpResponse response = answer_now(request, exchange.draining());
    co_await exchange.respond(std::move(response));
  }
}

HttpResponse Service::answer_now(const HttpRequest& request, bool draining) {
  if (request.path == "/health" || request.path == "/ready")
    if (const auto failure = engine_.failure())
      return error_response({.status = 503, .message = failure->message});
  if (request.path == "/health") return {.body = "{\"status\":\"ok\"}"};
  if (request.path == "/ready") {
    // A balancer should stop sending while what is here still ends.
    if (draining) return error_response({.status = 503, .message = "the server is stopping"});
    return {.body = "{\"status\":\"ready\"}"};
  }
  if (request.path == "/version")
    return {.body = JsonWriter().begin_object().key("version").string(options_.version).end_object().take()};
  if (request.path == "/metrics")
    return {.content_type = std::string(Metrics::kContentType), .body = metrics_.exposition()};
  if (request.path == kModels) return {.body = models_json()};
  const std::string name = request.path.substr(kModels.size() + 1);
  if (const Status known = openai::check_model(name, model_); !known.ok()) return refuse(known.error());
  JsonWriter json;
  write_model(json, name);
  return {.body = json.take()};
}

void Service::write_model(JsonWriter& json, const std::string& name) const {
  json.begin_object().key("id").string(name).key("object").string("model");
  json.key("created").integer(created_).key("owned_by").string("sparrow");
  json.key("max_model_len").integer(model_.defaults.max_model_tokens).end_object();
}

std::string Service::models_json() const {
  JsonWriter json;
  json.begin_object().key("object").string("list").key("data").begin_array();
  for (const std::string& name : model_.names) write_model(json, name);
  json.end_array().end_object();
  return json.take();
}

HttpResponse Service::refuse(const Error& error) {
  ApiError api{.status = 400, .message = error.message, .param = error.field};
  switch (error.code) {
    case Errc::kInvalidArgument:
    case Errc::kCorrupt:  // the body's syntax
      if (openai::is_too_long(error)) api.code = "context_length_exceeded";
      break;
    case Errc::kUnsupported:
      api.code = "unsupported";
      break;
    case Errc::kNotFound:
      api.status = 404;
      api.code = "model_not_found";
      break;
    case Errc::kBusy:
      api.status = 429;
      break;
    case Errc::kStopped:
      api.status = 503;
      break;
    case Errc::kIo:
      api = {.status = 500, .message = "the server failed to answer this request"};
      break;
  }
  counts_.rejected(api.status == 429 ? "busy" : api.status == 503 ? "stopping" : "invalid");
  HttpResponse response = error_response(api);
  if (api.status == 429 || api.status == 503) response.headers.add("Retry-After", "1");
  return response;
}

uint64_t Service::next_seed() {
  if (options_.seed) return *options_.seed + num_seeds_.fetch_add(1) * 0x9e3779b97f4a7c15u;
  thread_local std::mt19937_64 random{std::random_device{}()};
  return random();
}

}  // namespace sparrow
