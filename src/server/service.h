// SPDX-License-Identifier: Apache-2.0
// Service: the OpenAI API over an engine. Routes requests, runs completions and streams their answers. Its
// handlers are coroutines on the HTTP server's threads; what could hold those up runs on workers of its own.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/json/json_writer.h"
#include "engine/engine.h"
#include "server/auth.h"
#include "server/byte_budget.h"
#include "server/http/http.h"
#include "server/metrics.h"
#include "server/openai/generation.h"
#include "server/openai/prepare.h"
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
  struct Pump;

  net::awaitable<void> complete(Exchange& exchange, const openai::Api& api);
  net::awaitable<Result<Pump>> start(Exchange& exchange, const openai::Api& api);
  // Before the engine (service_prepare.cc).
  Result<std::string> admit(Exchange& exchange, KeyTicket& ticket);  // gives the key's id
  net::awaitable<Result<std::unique_ptr<openai::Prepared>>> prepare(Exchange& exchange,
                                                                    const openai::Api& api,
                                                                    KeyTicket& ticket);
  net::awaitable<void> convert(Exchange& exchange);
  net::awaitable<void> answer_whole(Exchange& exchange, Pump& pump);
  net::awaitable<void> answer_in_pieces(Exchange& exchange, Pump& pump);
  net::awaitable<void> answer_stream(Exchange& exchange, Pump& pump);
  void record(Exchange& exchange, const Pump& pump);
  HttpResponse refuse(const Error& error);
  HttpResponse refuse_failure(const Error& failure);
  HttpResponse answer_now(const HttpRequest& request, bool draining);
  std::string models_json() const;
  void write_model(JsonWriter& json, const std::string& name) const;
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
  net::thread_pool answer_work_{1};  // writes large answers
  WorkQueue work_;                   // reads bodies and tokenises text
};

}  // namespace sparrow
