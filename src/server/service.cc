// SPDX-License-Identifier: Apache-2.0
// The answers that are ready at once, and refusals.
#include "server/service.h"

#include <random>

#include "base/json/json_writer.h"
#include "server/api/errors.h"

namespace sparrow {
namespace {

constexpr std::string_view kModelPrefix = "/v1/models/";
// Threads that prepare requests, all but one of them also long ones: bodies that take tens of milliseconds.
constexpr int kWorkThreads = 3;
constexpr size_t kLongBytes = 256 << 10;

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

net::awaitable<void> Service::show_health(Exchange& exchange, const Route&) {
  const auto failure = engine_.failure();
  HttpResponse response = failure ? error_response({.status = 503, .message = failure->message})
                                  : HttpResponse{.body = "{\"status\":\"ok\"}"};
  co_await exchange.respond(std::move(response));
}

net::awaitable<void> Service::show_readiness(Exchange& exchange, const Route&) {
  const auto failure = engine_.failure();
  HttpResponse response{.body = "{\"status\":\"ready\"}"};
  if (failure) {
    response = error_response({.status = 503, .message = failure->message});
  } else if (exchange.draining()) {  // a balancer should stop sending while what is here still ends
    response = error_response({.status = 503, .message = "the server is stopping"});
  }
  co_await exchange.respond(std::move(response));
}

net::awaitable<void> Service::show_version(Exchange& exchange, const Route&) {
  HttpResponse response{
      .body = JsonWriter().begin_object().key("version").string(options_.version).end_object().take()};
  co_await exchange.respond(std::move(response));
}

net::awaitable<void> Service::show_metrics(Exchange& exchange, const Route&) {
  HttpResponse response{.content_type = std::string(Metrics::kContentType), .body = metrics_.exposition()};
  co_await exchange.respond(std::move(response));
}

net::awaitable<void> Service::list_models(Exchange& exchange, const Route&) {
  JsonWriter json;
  json.begin_object().key("object").string("list").key("data").begin_array();
  for (const std::string& name : model_.names) write_model(json, name);
  json.end_array().end_object();
  HttpResponse response{.body = json.take()};
  co_await exchange.respond(std::move(response));
}

net::awaitable<void> Service::show_model(Exchange& exchange, const Route&) {
  const std::string name = exchange.request().path.substr(kModelPrefix.size());
  HttpResponse response;
  if (const Status known = openai::check_model(name, model_); known.ok()) {
    JsonWriter json;
    write_model(json, name);
    response.body = json.take();
  } else {
    response = refuse(exchange, known.error());
  }
  co_await exchange.respond(std::move(response));
}

void Service::write_model(JsonWriter& json, const std::string& name) const {
  json.begin_object().key("id").string(name).key("object").string("model");
  json.key("created").integer(created_).key("owned_by").string("sparrow");
  json.key("max_model_len").integer(model_.defaults.max_model_tokens).end_object();
}

HttpResponse Service::refuse(const Exchange& exchange, const Error& error) {
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
      api = {.status = 429, .message = error.message, .is_overload = error.field != kKeyAtFault};
      break;
    case Errc::kStopped:
      api.status = 503;
      break;
    case Errc::kIo:
      api = {.status = 500, .message = "the server failed to answer this request"};
      break;
  }
  counts_.rejected(api.status == 429 ? "busy" : api.status == 503 ? "stopping" : "invalid");
  HttpResponse response = error_response_to(exchange.request(), api);
  if (api.status == 429 || api.status == 503) response.headers.add("Retry-After", "1");
  return response;
}

uint64_t Service::next_seed() {
  if (options_.seed) return *options_.seed + num_seeds_.fetch_add(1) * 0x9e3779b97f4a7c15u;
  thread_local std::mt19937_64 random{std::random_device{}()};
  return random();
}

}  // namespace sparrow
