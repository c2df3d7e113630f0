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
      store_(options_.stored_responses),
      background_(counts_),
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

net::awaitable<void> Service::show(Exchange& exchange, const Route& route) {
  HttpResponse response{.body = (this->*route.document)()};
  co_await exchange.respond(std::move(response));
}

net::awaitable<void> Service::show_metrics(Exchange& exchange, const Route&) {
  HttpResponse response{.content_type = std::string(Metrics::kContentType), .body = metrics_.exposition()};
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
  json.key("root").string(model_.root.empty() ? model_.names[0] : model_.root).key("parent").null();
  json.key("max_model_len").integer(model_.defaults.max_model_tokens).end_object();
}

std::string Service::models_json() const {
  JsonWriter json;
  json.begin_object().key("object").string("list").key("data").begin_array();
  for (const std::string& name : model_.names) write_model(json, name);
  return json.end_array().end_object().take();
}

std::string Service::version_json() const {
  return JsonWriter().begin_object().key("version").string(options_.version).end_object().take();
}

// Under vLLM's name: what is under way.
std::string Service::load_json() const {
  const int load = work_.num_waiting() + engine_.stats().live_requests;
  return JsonWriter().begin_object().key("server_load").integer(load).end_object().take();
}

std::string Service::server_json() const {
  const EngineInfo& info = engine_.info();
  JsonWriter json;
  json.begin_object().key("version").string(options_.version);
  json.key("model").string(model_.root.empty() ? model_.names[0] : model_.root);
  json.key("max_model_len").integer(model_.defaults.max_model_tokens);
  json.key("device").string(info.device).key("kernels").string(info.kernels);
  json.key("ranks").integer(info.num_ranks).key("cache_tokens").integer(info.cache_tokens);
  json.key("kv_cache_dtype").string(short_name_of(info.kv_dtype));
  json.key("index_cache_dtype").string(short_name_of(info.index_dtype));
  return json.end_object().take();
}

std::string Service::tokenizer_json() const {
  JsonWriter json;
  json.begin_object().key("vocab_size").integer(model_.defaults.vocab_size);
  json.key("model_max_length").integer(model_.defaults.max_model_tokens);
  json.key("has_chat_template").boolean(model_.chat_template != nullptr);
  json.key("added_tokens").begin_array();
  for (const AddedToken& token : model_.tokenizer.added_tokens()) {
    json.begin_object().key("id").integer(token.id).key("content").string(token.content);
    json.key("special").boolean(token.special).end_object();
  }
  return json.end_array().end_object().take();
}

std::string Service::description_json() const {
  std::vector<Operation> operations;
  for (const Route& route : routes()) operations.push_back(route.operation);
  return openapi_json(operations, model_.defaults, options_.version, !keys_.empty());
}

std::string Service::greeting_json() const {
  JsonWriter json;
  json.begin_object().key("name").string("sparrow").key("version").string(options_.version);
  json.key("endpoints").begin_array();
  for (const Route& route : routes())
    json.string(strf("{} {}", route.operation.method, route.operation.path));
  return json.end_array().end_object().take();
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
      if (error.field == "model") api.code = "model_not_found";
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
