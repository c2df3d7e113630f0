// SPDX-License-Identifier: Apache-2.0
// What connections share: with all others (HttpServices), and with those on the same io thread (Worker).
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <condition_variable>
#include <ctime>
#include <list>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>

#include "server/http/http.h"
#include "server/http/transport.h"

namespace sparrow {

// Any thread. Options and handler do not change after start.
struct HttpServices {
  HttpServerOptions options;
  HttpHandler handler;

  // Null: plain. Connections keep the one they began with.
  std::shared_ptr<const TlsContext> tls() const;
  void set_tls(std::shared_ptr<const TlsContext> tls);

  std::atomic<size_t> body_bytes{0};  // of all requests at hand
  // The server wants to end. In this order: connections have their last request; no new requests; no new
  // connections. Each includes the ones before.
  std::atomic<bool> leaving{false}, draining{false}, stopping{false};

  std::atomic<int> num_connections{0};
  std::mutex mutex;
  std::condition_variable none_left;  // num_connections became 0

  void connection_ended();

 private:
  mutable std::mutex tls_mutex_;
  std::shared_ptr<const TlsContext> tls_;
};

// One io thread and the connections that live on it. All but the constructor, post-like calls on io(),
// start() and join() belong to that thread.
class Worker {
 public:
  explicit Worker(HttpServices& services);

  void start();
  // Lets the thread end when its last connection has ended.
  void release() { work_.reset(); }
  void join();
  net::io_context& io() { return io_; }

  // Serves a new connection, unless there are too many.
  void adopt(net::ip::tcp::socket socket);
  void close_idle();
  void close_all();

  using Position = std::list<Connection*>::iterator;
  Position enter_idle(Connection* connection) { return idle_.insert(idle_.end(), connection); }
  void leave_idle(Position position) { idle_.erase(position); }
  Position enter(Connection* connection) { return connections_.insert(connections_.end(), connection); }
  void leave(Position position) { connections_.erase(position); }

  // Where reads go first: an idle connection needs no buffer of its own.
  char* scratch() { return scratch_.data(); }
  size_t scratch_size() const { return scratch_.size(); }
  const std::string& date();
  std::string new_request_id();

 private:
  Connection* longest_idle();  // null: there is none
  void refuse(net::ip::tcp::socket& socket);

  HttpServices& services_;
  net::io_context io_{1};
  net::executor_work_guard<net::io_context::executor_type> work_{io_.get_executor()};
  std::thread thread_;
  std::list<Connection*> connections_, idle_;  // idle_: the longest idle one first
  std::array<char, 64 << 10> scratch_;
  std::time_t date_seconds_ = 0;
  std::string date_;
  std::mt19937_64 random_;
};

}  // namespace sparrow
