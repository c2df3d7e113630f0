// SPDX-License-Identifier: Apache-2.0
// Connection: reads requests one after the other, runs the handler for each, writes the answers in order.
// Lives on its worker's thread. At any time it waits for one thing: a timer that carries the deadline and
// that every event (readable, writable, woken, closed by us) cancels.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/http/http.h"
#include "server/http/message/request_parser.h"
#include "server/http/message/response_head.h"
#include "server/http/transport.h"
#include "server/http/worker.h"

namespace sparrow {

// The far end of the Wakers of one exchange.
class WakeState : public std::enable_shared_from_this<WakeState> {
 public:
  WakeState(net::io_context& io, Connection& connection) : io_(&io), connection_(&connection) {}
  void wake();    // any thread
  bool take();    // whether it was woken since the last call
  void detach();  // the exchange is over; on the connection's thread

 private:
  std::mutex mutex_;
  net::io_context* io_;  // null after detach()
  bool pending_ = false;
  Connection* connection_;  // the connection's thread only
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;

  Connection(HttpServices& services, Worker& worker, net::ip::tcp::socket socket,
             std::unique_ptr<Transport> transport);
  ~Connection();

  net::awaitable<void> run();
  // Ends the connection at its next turn.
  void abort();
  void evict();  // an idle one makes room for another
  bool has_input_waiting();
  void resume() { timer_.cancel(); }

  // The other side of Exchange.
  const HttpRequest& request() { return parser_->request(); }
  net::awaitable<bool> respond(HttpResponse&& response);
  net::awaitable<bool> begin_stream(std::string_view content_type, const HttpHeaders& headers);
  net::awaitable<bool> write_chunk(std::string_view chunk);
  net::awaitable<bool> end_stream();
  net::awaitable<WaitResult> wait(Clock::time_point deadline);
  net::awaitable<void> wait_for_wake();
  net::awaitable<void> yield();
  std::string take_body() { return std::move(parser_->request().body); }
  std::shared_ptr<WakeState> wake_state();
  bool peer_gone() const { return input_closed_ || output_broken_ || aborted_; }
  bool draining() const { return services_.leaving.load(std::memory_order_relaxed); }
  void annotate(AccessRecord::Note note) { notes_.push_back(std::move(note)); }

 private:
  enum class Answer { kNone, kStreaming, kComplete };
  enum class ReadResult { kData, kTimeout, kClosed };

  // One request, from its first byte to the last of its answer (connection.cc).
  net::awaitable<bool> serve_one();
  net::awaitable<bool> read_request();
  net::awaitable<bool> read_head();
  net::awaitable<bool> read_body();
  net::awaitable<void> run_handler();
  void begin_request();
  void end_request();
  void release_request();
  void leave_idle();
  void name_request();
  void check_head();
  void consume_input();
  void refuse(const ApiError& error);
  bool reserve_body();
  net::awaitable<bool> nothing_to_send();  // gives false
  std::string take_head(const ResponseHead& head, const HttpHeaders& headers);

  // Bytes and time (connection_io.cc).
  net::awaitable<bool> handshake();
  net::awaitable<ReadResult> read_more(Clock::time_point deadline);
  net::awaitable<bool> send(std::string_view bytes);
  net::awaitable<bool> send_with_body();
  net::awaitable<void> finish();
  net::awaitable<void> suspend(Clock::time_point deadline);
  bool read_available();
  void arm(Transport::Io wanted);
  void arm_read();
  void arm_write();
  Clock::time_point deadline_for(std::chrono::milliseconds base, size_t bytes) const;

  HttpServices& services_;
  const HttpLimits& limits_;
  Worker& worker_;
  net::ip::tcp::socket socket_;
  std::unique_ptr<Transport> transport_;
  net::steady_timer timer_;
  std::string peer_;
  Worker::Position position_;
  std::optional<Worker::Position> idle_position_;

  bool read_armed_ = false, write_armed_ = false;
  bool readable_ = true;  // worth a try: it was signalled, or nobody knows yet
  bool input_closed_ = false, output_broken_ = false, aborted_ = false;
  size_t turn_bytes_ = 0;  // moved since others of this thread had their turn
  std::string in_;         // read and not yet parsed, from in_used_ on
  size_t in_used_ = 0;
  std::string out_, out_body_;  // a large body is not copied behind its head

  // Of the request at hand.
  bool first_request_ = true, keep_alive_ = false;
  std::optional<RequestParser> parser_;
  std::optional<HttpResponse> refusal_;
  Answer answer_ = Answer::kNone;
  int status_ = 0;
  int64_t response_bytes_ = 0;
  bool sent_all_ = true;
  size_t reserved_body_bytes_ = 0;
  std::shared_ptr<WakeState> wake_;
  std::vector<AccessRecord::Note> notes_;
  std::string failure_;
};

}  // namespace sparrow
