// SPDX-License-Identifier: Apache-2.0
// The part of Connection that moves bytes and waits.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "server/http/connection.h"

namespace sparrow {

namespace {

// That a peer may move as fast as it can before the other connections of its thread get their turn.
constexpr size_t kTurnBytes = 256 << 10;

}  // namespace

void WakeState::wake() {
  const std::lock_guard lock(mutex_);
  if (!io_ || pending_) return;
  pending_ = true;
  net::post(*io_, [self = shared_from_this()] {
    if (self->connection_) self->connection_->resume();
  });
}

bool WakeState::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(pending_, false);
}

void WakeState::detach() {
  const std::lock_guard lock(mutex_);
  io_ = nullptr;
  connection_ = nullptr;
}

void Connection::abort() {
  aborted_ = true;
  resume();
}

net::awaitable<void> Connection::suspend(Clock::time_point deadline) {
  turn_bytes_ = 0;
  timer_.expires_at(deadline);
  boost::system::error_code cancelled;
  co_await timer_.async_wait(net::redirect_error(net::use_awaitable, cancelled));
}

net::awaitable<void> Connection::yield() {
  turn_bytes_ = 0;
  co_await net::post(worker_.io(), net::use_awaitable);
}

void Connection::arm_read() {
  if (std::exchange(read_armed_, true)) return;
  socket_.async_wait(net::socket_base::wait_read, [self = shared_from_this()](boost::system::error_code) {
    self->read_armed_ = false;
    self->readable_ = true;
    self->resume();
  });
}

void Connection::arm_write() {
  if (std::exchange(write_armed_, true)) return;
  socket_.async_wait(net::socket_base::wait_write, [self = shared_from_this()](boost::system::error_code) {
    self->write_armed_ = false;
    self->resume();
  });
}

void Connection::arm(Transport::Io wanted) {
  wanted == Transport::Io::kWantWrite ? arm_write() : arm_read();
}

Connection::Clock::time_point Connection::deadline_for(std::chrono::milliseconds base, size_t bytes) const {
  const auto for_bytes =
      std::chrono::milliseconds(static_cast<int64_t>(bytes) * 1000 / limits_.bytes_per_second);
  return Clock::now() + base + for_bytes;
}

// One read of what is there. False: nothing was.
bool Connection::read_available() {
  if (input_closed_ || !(readable_ || transport_->has_unread())) return false;
  const Transport::Moved moved = transport_->read(worker_.scratch(), worker_.scratch_size());
  // A full buffer may have left something behind, a short one has emptied the socket. TLS that has to write
  // first is asked again when it can.
  readable_ = moved.bytes == worker_.scratch_size() || moved.io == Transport::Io::kWantWrite;
  switch (moved.io) {
    case Transport::Io::kDone:
      in_.append(worker_.scratch(), moved.bytes);
      turn_bytes_ += moved.bytes;
      return true;
    case Transport::Io::kClosed:
      input_closed_ = true;
      return false;
    case Transport::Io::kWantRead:
    case Transport::Io::kWantWrite:
      arm(moved.io);
      return false;
  }
  return false;
}

net::awaitable<Connection::ReadResult> Connection::read_more(Clock::time_point deadline) {
  for (;;) {
    if (aborted_) co_return ReadResult::kClosed;
    if (read_available()) {
      if (turn_bytes_ >= kTurnBytes) co_await yield();
      co_return ReadResult::kData;
    }
    if (input_closed_) co_return ReadResult::kClosed;
    if (Clock::now() >= deadline) co_return ReadResult::kTimeout;
    arm_read();
    co_await suspend(deadline);
  }
}

net::awaitable<WaitResult> Connection::wait(Clock::time_point deadline) {
  for (;;) {
    const bool has_room = in_.size() - in_used_ < limits_.pipelined_bytes;
    if (has_room && read_available()) continue;
    if (peer_gone()) co_return WaitResult::kPeerGone;
    if (wake_ && wake_->take()) co_return WaitResult::kWoken;
    if (Clock::now() >= deadline) co_return WaitResult::kTimeout;
    if (has_room) arm_read();
    co_await suspend(deadline);
  }
}

net::awaitable<void> Connection::wait_for_wake() {
  while (!wake_->take()) co_await suspend(Clock::time_point::max());
}

net::awaitable<bool> Connection::send_with_body() {
  const bool sent = co_await send(out_);  // in the condition itself g++ 12 would lose this coroutine's frame
  if (!sent) co_return false;
  co_return co_await send(out_body_);
}

net::awaitable<bool> Connection::send(std::string_view bytes) {
  const auto deadline = deadline_for(limits_.write_time, bytes.size());
  while (!bytes.empty() && !output_broken_ && !aborted_) {
    const Transport::Moved moved = transport_->write(bytes.substr(0, kTurnBytes));
    bytes.remove_prefix(moved.bytes);
    turn_bytes_ += moved.bytes;
    if (turn_bytes_ >= kTurnBytes && !bytes.empty()) co_await yield();
    if (moved.io == Transport::Io::kDone) continue;
    if (moved.io == Transport::Io::kClosed || Clock::now() >= deadline) {
      output_broken_ = true;
      break;
    }
    arm(moved.io);
    co_await suspend(deadline);
  }
  sent_all_ = sent_all_ && bytes.empty();
  co_return bytes.empty();
}

net::awaitable<bool> Connection::handshake() {
  const auto deadline = deadline_for(limits_.header_time, 0);
  for (;;) {
    const Transport::Io io = transport_->handshake();
    if (io == Transport::Io::kDone) co_return true;
    if (io == Transport::Io::kClosed || aborted_ || Clock::now() >= deadline) {
      output_broken_ = true;
      co_return false;
    }
    arm(io);
    co_await suspend(deadline);
  }
}

// A close with unread bytes makes the kernel reset the connection, and the peer may lose the answer. So we
// say that we are done, and give the peer a moment to stop.
net::awaitable<void> Connection::finish() {
  if (!output_broken_ && !aborted_) {
    transport_->finish();
    const auto deadline = Clock::now() + limits_.linger_time;
    while (co_await read_more(deadline) == ReadResult::kData) in_.clear();
  }
  boost::system::error_code ignored;
  socket_.close(ignored);
}

}  // namespace sparrow
