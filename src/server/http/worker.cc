// SPDX-License-Identifier: Apache-2.0
#include "server/http/worker.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include "base/strf.h"
#include "server/http/connection.h"

namespace sparrow {

namespace {

// Bytes that the kernel may hold unsent for one peer. Without it a peer that does not read makes the kernel
// buffer megabytes before a write has to wait.
constexpr int kMaxUnsentBytes = 128 << 10;

}  // namespace

void HttpServices::connection_ended() {
  if (--num_connections > 0) return;
  const std::lock_guard lock(mutex);
  none_left.notify_all();
}

std::shared_ptr<const TlsContext> HttpServices::tls() const {
  const std::lock_guard lock(tls_mutex_);
  return tls_;
}

void HttpServices::set_tls(std::shared_ptr<const TlsContext> tls) {
  const std::lock_guard lock(tls_mutex_);
  tls_ = std::move(tls);
}

Worker::Worker(HttpServices& services) : services_(services) {
  std::random_device device;
  std::seed_seq seed{device(), device(), device(), device()};
  random_.seed(seed);
}

void Worker::start() {
  thread_ = std::thread([this] { io_.run(); });
}

void Worker::join() {
  if (thread_.joinable()) thread_.join();
}

void Worker::adopt(net::ip::tcp::socket socket) {
  if (services_.stopping) return;
  const int limit = services_.options.limits.connections;
  if (++services_.num_connections > limit) {
    Connection* idle = longest_idle();
    if (!idle) {
      refuse(socket);
      services_.connection_ended();
      return;
    }
    idle->evict();
  }
  boost::system::error_code ignored;
  socket.native_non_blocking(true, ignored);
  socket.set_option(net::ip::tcp::no_delay(true), ignored);
  const int fd = socket.native_handle();
  ::setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kMaxUnsentBytes, sizeof(kMaxUnsentBytes));
  const auto tls = services_.tls();
  auto transport = tls ? tls->accept(fd) : make_plain_transport(fd);
  if (!transport) {
    services_.connection_ended();
    return;
  }
  const auto connection =
      std::make_shared<Connection>(services_, *this, std::move(socket), std::move(transport));
  net::co_spawn(io_, connection->run(), net::detached);
}

// One whose request has come but is not read yet is not idle: to close it would lose that request. A few are
// looked at: where requests come that fast, the next connection finds another.
Connection* Worker::longest_idle() {
  constexpr int kLooks = 16;
  auto next = idle_.begin();
  for (int i = 0; i < kLooks && next != idle_.end(); ++i, ++next)
    if (!(*next)->has_input_waiting()) return *next;
  return nullptr;
}

void Worker::refuse(net::ip::tcp::socket& socket) {
  if (services_.tls()) return;  // no answer before a handshake; the close is the answer
  HttpResponse response = error_response(
      {.status = 503, .message = "The server has too many connections.", .code = "overloaded"});
  response.headers.add("Retry-After", "1");
  std::string out;
  append_response_head(out,
                       {.status = 503,
                        .content_type = response.content_type,
                        .content_length = response.body.size(),
                        .keep_alive = false,
                        .date = date()},
                       response.headers, {});
  out += response.body;
  // Into an empty socket buffer: it fits, or the peer is gone.
  (void)!::send(socket.native_handle(), out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::shutdown(socket.native_handle(), SHUT_WR);
}

void Worker::close_idle() {
  for (Connection* connection : idle_) connection->abort();
}

void Worker::close_all() {
  for (Connection* connection : connections_) connection->abort();
}

const std::string& Worker::date() {
  const std::time_t now = std::time(nullptr);
  if (now != date_seconds_) {
    date_seconds_ = now;
    date_ = http_date(now);
  }
  return date_;
}

std::string Worker::new_request_id() {
  return strf("req-{:016x}{:016x}", random_(), random_());
}

}  // namespace sparrow
