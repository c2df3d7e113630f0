// SPDX-License-Identifier: Apache-2.0
#include "support/server/http_test_server.h"

#include <boost/asio/awaitable.hpp>
#include <stdexcept>
#include <thread>

namespace sparrow::test {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

template <typename Condition>
bool eventually(Condition condition) {
  const auto deadline = Clock::now() + kPatience;
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

HttpResponse text(std::string body) {
  return {.content_type = "text/plain", .body = std::move(body)};
}

struct Counted {
  Counted(std::atomic<int>& started, std::atomic<int>& ended) : ended(ended) { ++started; }
  ~Counted() { ++ended; }
  std::atomic<int>& ended;
};

}  // namespace

HttpServerOptions strict_options() {
  HttpServerOptions options;
  options.port = 0;
  options.limits.header_bytes = 4096;
  options.limits.header_fields = 20;
  options.limits.target_bytes = 1024;
  options.limits.body_bytes = 64 << 10;
  options.limits.pipelined_bytes = 8 << 10;
  options.limits.linger_time = milliseconds(200);
  return options;
}

HttpServerOptions impatient_options() {
  HttpServerOptions options = strict_options();
  options.limits.header_time = milliseconds(300);
  options.limits.body_time = milliseconds(300);
  options.limits.idle_time = milliseconds(600);
  options.limits.write_time = milliseconds(300);
  options.limits.bytes_per_second = 8 << 20;
  return options;
}

HttpTestServer::HttpTestServer(HttpServerOptions options) {
  options.port = 0;  // tests run side by side
  options.on_done = [this](const AccessRecord& record) {
    std::string notes;
    for (const auto& note : record.notes) notes += note.name + "=" + note.text + ";";
    const std::lock_guard lock(mutex_);
    done_.push_back({.method = record.request.method,
                     .path = record.request.path,
                     .request_id = record.request.request_id,
                     .failure = record.failure,
                     .notes = notes,
                     .status = record.status,
                     .response_bytes = record.response_bytes,
                     .complete = record.complete});
  };
  auto server =
      HttpServer::start(std::move(options), [this](Exchange& exchange) { return handle(exchange); });
  SPARROW_CHECK(server.ok());
  server_ = std::move(server).value();
}

RawResponse HttpTestServer::ask(std::string_view bytes) const {
  RawClient client = connect();
  client.send(bytes);
  return client.read_response();
}

bool HttpTestServer::is_healthy() const {
  return ask(get_request("/hello")).body == "hello";
}

void HttpTestServer::wake_all() {
  const std::lock_guard lock(mutex_);
  for (const Waker& waker : wakers_) waker.wake();
}

void HttpTestServer::let_go() {
  holds_ = false;
  holds_.notify_all();
}

bool HttpTestServer::becomes(const std::atomic<int>& counter, int value) const {
  return eventually([&] { return counter == value; });
}

bool HttpTestServer::has_connections(int count) const {
  return eventually([&] { return server_->num_connections() == count; });
}

std::vector<HttpTestServer::Done> HttpTestServer::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

net::awaitable<void> HttpTestServer::handle(Exchange& exchange) {
  const Counted counted(handlers_started, handlers_ended);
  const HttpRequest& request = exchange.request();
  HttpResponse response = text("hello");
  if (request.path == "/echo") {
    response.body = request.method + "\n" + request.path + "\n" + request.query + "\n" + request.body;
  } else if (request.path == "/big") {
    response.body.assign(size_t{8} << 20, 'b');
  } else if (request.path == "/wait") {
    co_return co_await wait(exchange);
  } else if (request.path == "/stream") {
    co_return co_await stream(exchange, std::stoi(query_value(request.query, "n").value_or("3")));
  } else if (request.path == "/flood") {
    co_return co_await flood(exchange);
  } else if (request.path == "/hold") {
    holds_.wait(true);
  } else if (request.path == "/throw") {
    throw std::runtime_error("secret: /etc/passwd");
  } else if (request.path == "/throw-late") {
    co_await exchange.begin_stream("text/plain");
    co_await exchange.write("partial");
    throw std::runtime_error("secret: half way");
  } else if (request.path == "/silent") {
    co_return;
  } else if (request.path != "/hello") {
    const ApiError error{.status = 404, .message = "no such path"};
    response = error_response(error);
  }
  exchange.annotate("model", "demo");
  exchange.annotate("tokens", 7);
  co_await exchange.respond(std::move(response));
}

net::awaitable<void> HttpTestServer::wait(Exchange& exchange) {
  {
    const std::lock_guard lock(mutex_);
    wakers_.push_back(exchange.waker());
  }
  ++waits_started;
  const WaitResult result = co_await exchange.wait_for(std::chrono::seconds(5));
  if (result == WaitResult::kPeerGone) {
    ++peers_gone;
    co_return;
  }
  HttpResponse response = text(result == WaitResult::kWoken ? "woken" : "timeout");
  co_await exchange.respond(std::move(response));
}

net::awaitable<void> HttpTestServer::stream(Exchange& exchange, int chunks) {
  if (!co_await exchange.begin_stream("text/event-stream")) co_return;
  for (int i = 0; i < chunks; ++i) {
    const std::string chunk = std::to_string(i) + "\n";
    if (!co_await exchange.write(chunk)) co_return;
  }
  co_await exchange.end_stream();
}

net::awaitable<void> HttpTestServer::flood(Exchange& exchange) {
  const std::string chunk(64 << 10, 'f');
  if (!co_await exchange.begin_stream("text/plain")) co_return;
  while (co_await exchange.write(chunk)) continue;
  ++floods_stopped;
}

}  // namespace sparrow::test
