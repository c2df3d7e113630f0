// SPDX-License-Identifier: Apache-2.0
// An HttpServer on a free port with a handler that shows what the HTTP layer can do. Paths:
//   /hello        "hello"
//   /echo         method, path, query and body of the request, one per line
//   /stream?n=N   N chunks "0\n", "1\n", ...
//   /flood        a stream of 64 KiB chunks until the peer stops it
//   /big          8 MiB at once
//   /wait         until the peer is gone or wake_all() is called: "woken", "timeout" (after 5 s)
//   /hold         holds its thread of the server until let_go() is called
//   /throw, /throw-late, /silent   handlers that fail: at once, in a stream, by answering nothing
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/http/http.h"
#include "support/server/raw_client.h"

namespace sparrow::test {

class HttpTestServer {
 public:
  explicit HttpTestServer(HttpServerOptions options = {});
  ~HttpTestServer() {
    let_go();
    server_.reset();
  }

  HttpServer& server() { return *server_; }
  int port() const { return server_->port(); }
  RawClient connect() const { return RawClient(port()); }
  // One request on a connection of its own.
  RawResponse ask(std::string_view bytes) const;
  // The server still answers, and without delay.
  bool is_healthy() const;
  void wake_all();
  void let_go();

  // Waits up to ten seconds.
  bool becomes(const std::atomic<int>& counter, int value) const;
  bool has_connections(int count) const;

  std::atomic<int> handlers_started{0}, handlers_ended{0};
  std::atomic<int> waits_started{0}, peers_gone{0}, floods_stopped{0};

  struct Done {
    std::string method, path, request_id, failure, notes;
    int status;
    int64_t response_bytes;
    bool complete;
  };
  std::vector<Done> done() const;

 private:
  net::awaitable<void> handle(Exchange& exchange);
  net::awaitable<void> wait(Exchange& exchange);
  net::awaitable<void> stream(Exchange& exchange, int chunks);
  net::awaitable<void> flood(Exchange& exchange);

  std::atomic<bool> holds_{true};
  mutable std::mutex mutex_;
  std::vector<Waker> wakers_;
  std::vector<Done> done_;
  std::unique_ptr<HttpServer> server_;
};

// Options with a free port and limits small enough that a test can reach them.
HttpServerOptions strict_options();
// And times that a test can wait for; too short for clients that must not be cut off on a busy machine.
HttpServerOptions impatient_options();

}  // namespace sparrow::test
