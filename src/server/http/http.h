// SPDX-License-Identifier: Apache-2.0
// The HTTP/1.1 server: what a handler sees (Exchange) and what the program starts (HttpServer). A connection
// lives on one io thread; its handler is a coroutine on that thread and must not block it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/http/message/limits.h"
#include "server/http/message/message.h"

namespace sparrow {

namespace net = boost::asio;

class Connection;
class WakeState;

// Resumes the handler that waits in Exchange::wait(). Copies may be kept and called on any thread, also after
// the exchange has ended: then nothing happens.
class Waker {
 public:
  explicit Waker(std::shared_ptr<WakeState> state) : state_(std::move(state)) {}
  void wake() const;

 private:
  std::shared_ptr<WakeState> state_;
};

enum class WaitResult { kWoken, kTimeout, kPeerGone };

// One request being answered. A handler calls respond() once, or begin_stream(), write()..., end_stream().
// Every function that returns awaitable<bool> gives false when the peer is gone, reads too slowly or the
// server stops: the handler then cancels its work and returns. Called on the connection's io thread only.
// Pass named variables to co_await expressions: g++ 12 destroys some braced temporaries in them twice.
class Exchange {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Exchange(Connection& connection) : connection_(connection) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  const HttpRequest& request() const;

  net::awaitable<bool> respond(HttpResponse response);
  net::awaitable<bool> respond(const ApiError& error) { return respond(error_response(error)); }

  // A body of unknown length, sent as it comes: chunked, or until close for HTTP/1.0. The head goes out at
  // once.
  net::awaitable<bool> begin_stream(std::string_view content_type, const HttpHeaders& headers = {});
  // Returns when the kernel has the bytes. `chunk` must stay valid until then.
  net::awaitable<bool> write(std::string_view chunk);
  net::awaitable<bool> end_stream();

  // Suspends until wake() was called since the last wait (also before this one), the deadline passes, or the
  // peer closes its side. Bytes that the peer pipelines meanwhile are kept, up to the limit.
  net::awaitable<WaitResult> wait(Clock::time_point deadline = Clock::time_point::max());
  net::awaitable<WaitResult> wait_for(Clock::duration duration) { return wait(Clock::now() + duration); }
  // The same, but only for wake(): whoever is about to call it may hold what belongs to the handler.
  net::awaitable<void> wait_for_wake();
  Waker waker() const;
  // Lets the other connections of this thread have their turn: between two pieces of work that take long
  // together.
  net::awaitable<void> yield();
  // The body itself, for work that may outlive the exchange. request() has none after this.
  std::string take_body();

  // As far as is known without reading: exact after wait().
  bool peer_gone() const;
  // The server wants to end: finish soon, start nothing long.
  bool draining() const;

  // Fields for the access log, in this order: "model", "prompt_tokens", ...
  void annotate(std::string name, std::string value);
  void annotate(std::string name, int64_t value);

 private:
  Connection& connection_;
};

using HttpHandler = std::function<net::awaitable<void>(Exchange&)>;

// What is known about a request when its answer has been sent or given up.
struct AccessRecord {
  const HttpRequest& request;
  int status;              // of the head that was sent; 0: none was
  int64_t response_bytes;  // of the body, without framing
  double seconds;          // first byte of the request to the last of the answer
  bool complete;           // the peer was there until the end
  struct Note {
    std::string name, text;
    bool is_number;
  };
  const std::vector<Note>& notes;
  const std::string& failure;  // what a handler threw; for the log, never for the peer
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // an IPv4 or IPv6 address, or a name: all of its addresses
  int port = 8000;                 // 0: any free one; port() says which
  int num_threads = 1;
  std::string tls_cert_file, tls_key_file;   // PEM; both or neither
  std::vector<std::string> allowed_origins;  // CORS: none when empty; "*" allows all
  HttpLimits limits;

  // Called when the head has been read, but nothing of the body: a response refuses the request at once. For
  // keys, unknown paths and smaller body limits.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> check_head;
  // How an error is told to whoever sent this request.
  std::function<HttpResponse(const HttpRequest&, const ApiError&)> tell_error =
      [](const HttpRequest&, const ApiError& error) { return error_response(error); };
  // Called on the io thread after each exchange, also after those that were refused.
  std::function<void(const AccessRecord&)> on_done;
};

class HttpServer {
 public:
  // Binds, listens and starts the threads. Raises the limit of open files, ignores SIGPIPE.
  static Result<std::unique_ptr<HttpServer>> start(HttpServerOptions options, HttpHandler handler);
  ~HttpServer();  // stop()

  int port() const;
  std::string url() const;  // "http://127.0.0.1:8000"
  int num_connections() const;

  // Exchange::draining() is true from now on, and answers close their connection. New connections are still
  // taken: load balancers keep sending until they have noticed.
  void announce_drain();
  // Stops accepting, closes idle connections and waits until the busy ones have finished. False: some had not
  // at the deadline. Callable from any thread but those of the server.
  bool drain(std::chrono::steady_clock::time_point deadline);
  // Reads certificate and key again, for new connections. Error: they cannot be used, and the old ones stay.
  Status reload_tls();
  // Closes everything; handlers see their peers gone. Returns when all of them have returned.
  void stop();

 private:
  class Core;
  explicit HttpServer(std::unique_ptr<Core> core);
  std::unique_ptr<Core> core_;
};

}  // namespace sparrow
