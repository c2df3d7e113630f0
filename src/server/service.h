// SPDX-License-Identifier: Apache-2.0
// Service: the APIs over an engine. Routes requests, runs completions and streams their answers. Its
// handlers are coroutines on the HTTP server's threads; what could hold those up runs on workers of its own.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json_writer.h"
#include "engine/engine.h"
#include "server/api/pump.h"
#include "server/auth.h"
#include "server/byte_budget.h"
#include "server/describe/openapi.h"
#include "server/http/http.h"
#include "server/metrics.h"
#include "server/openai/generation.h"
#include "server/openai/prepare.h"
#include "server/responses/background.h"
#include "server/responses/store.h"
#include "server/service_metrics.h"
#include "server/work_queue.h"

namespace sparrow {

struct ServiceOptions {
  std::optional<uint64_t> seed;  // makes requests without a seed repeatable; nullopt: they are not
  std::optional<std::chrono::milliseconds> queue_timeout;
  int max_queued_requests = 1024;  // that wait to be prepared or to run: more are refused
  // How often a comment goes out while nothing else does, so that proxies do not close a stream during a long
  // prompt.
  std::chrono::milliseconds keep_alive{10'000};
  // What all answers under way may take together, by Prepared::answer_bytes.
  int64_t answer_memory = int64_t{1} << 30;
  StoreLimits stored_responses;
  std::string version;
  // Names that a request's Host may have, with any port; empty: all. A web page can point a name of its own
  // at a machine that only the browser reaches, but it cannot choose another Host.
  std::vector<std::string> allowed_hosts;
};

class Service {
 public:
  // All references are borrowed and must outlive the HTTP server that calls this.
  Service(Engine& engine, openai::ServedModel model, const ApiKeys& keys, Metrics& metrics,
          ServiceOptions options);

  // Refuses what has no valid key before its body is read.
  std::optional<HttpResponse> check_head(const HttpRequest& request) const;
  net::awaitable<void> handle(Exchange& exchange);

 private:
  // What Error::field says where the key's limits refuse a request, and not the server's.
  static constexpr const char* kKeyAtFault = "API key";

  // An answer's way: where it is asked for, and who gives it.
  struct Route {
    Operation operation;
    net::awaitable<void> (Service::*handle)(Exchange& exchange, const Route& route);
    const openai::Api* api = nullptr;                    // of complete() and count()
    std::string (Service::*document)() const = nullptr;  // of show()
  };
  static std::span<const Route> routes();
  // nullptr: none; `allowed` then names the methods that the path has.
  static const Route* find_route(const HttpRequest& request, std::string& allowed);
  static std::string help(std::string_view path);  // for one that is not there

  net::awaitable<void> complete(Exchange& exchange, const Route& route);
  net::awaitable<void> count(Exchange& exchange, const Route& route);
  net::awaitable<void> show_response(Exchange& exchange, const Route& route);
  net::awaitable<void> delete_response(Exchange& exchange, const Route& route);
  net::awaitable<void> cancel_response(Exchange& exchange, const Route& route);
  net::awaitable<void> list_input_items(Exchange& exchange, const Route& route);
  // The stored response that the path names; the key it belongs to.
  Result<std::shared_ptr<const StoredResponse>> stored_response(const Exchange& exchange, std::string& key);
  net::awaitable<void> detokenize(Exchange& exchange, const Route& route);
  net::awaitable<void> show(Exchange& exchange, const Route& route);
  net::awaitable<void> show_model(Exchange& exchange, const Route& route);
  net::awaitable<void> show_health(Exchange& exchange, const Route& route);
  net::awaitable<void> show_readiness(Exchange& exchange, const Route& route);
  net::awaitable<void> show_metrics(Exchange& exchange, const Route& route);

  net::awaitable<Result<Pump>> start(Exchange& exchange, const openai::Api& api);
  // Before the engine (service_prepare.cc).
  Result<std::string> admit(Exchange& exchange, KeyTicket& ticket);  // gives the key's id
  net::awaitable<Result<std::unique_ptr<openai::Prepared>>> prepare(Exchange& exchange,
                                                                    const openai::Api& api,
                                                                    KeyTicket& ticket);
  net::awaitable<void> answer_whole(Exchange& exchange, Pump& pump);
  net::awaitable<void> answer_in_pieces(Exchange& exchange, Pump& pump);
  net::awaitable<void> answer_stream(Exchange& exchange, Pump& pump);
  void record(Exchange& exchange, const Pump& pump);
  HttpResponse refuse(const Exchange& exchange, const Error& error);
  HttpResponse refuse_failure(const Exchange& exchange, const Error& failure);
  // The key that a request was sent with; nullptr: none of ours.
  std::shared_ptr<const ApiKey> key_of(const HttpRequest& request) const;
  void write_model(JsonWriter& json, const std::string& name) const;
  // Documents that are ready at once.
  std::string models_json() const;
  std::string version_json() const;
  std::string load_json() const;
  std::string server_json() const;
  std::string tokenizer_json() const;
  std::string description_json() const;
  std::string greeting_json() const;
  uint64_t next_seed();

  Engine& engine_;
  const openai::ServedModel model_;
  const ApiKeys& keys_;
  Metrics& metrics_;
  const ServiceOptions options_;
  ServiceMetrics counts_;
  ByteBudget answers_;
  const int64_t created_;
  std::atomic<uint64_t> num_seeds_{0};
  ResponseStore store_;
  BackgroundRuns background_;
  net::thread_pool answer_work_{1};  // writes large answers
  WorkQueue work_;                   // reads bodies and tokenises text
};

}  // namespace sparrow
