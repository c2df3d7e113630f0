// SPDX-License-Identifier: Apache-2.0
#include "server/events/zmtp_peer.h"

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <utility>

namespace sparrow {
namespace {

constexpr size_t kMaxFrames = 16;  // of a message to us

}  // namespace

ZmtpPeer::ZmtpPeer(net::ip::tcp::socket socket, const Role& role) : socket_(std::move(socket)), role_(role) {
  boost::system::error_code ignored;
  socket_.set_option(net::ip::tcp::no_delay(true), ignored);
  // A subscriber never says anything: this is how one that is gone is noticed.
  socket_.set_option(net::socket_base::keep_alive(true), ignored);
}

void ZmtpPeer::start() {
  send({.head = zmtp::greeting() + zmtp::ready(role_.socket_type)});
  read();
}

void ZmtpPeer::close() {
  if (std::exchange(ended_, true)) return;
  boost::system::error_code ignored;
  socket_.close(ignored);
  role_.on_end(*this);
}

void ZmtpPeer::send(Message message) {
  if (ended_) return;
  unsent_bytes_ += message.head.size() + (message.tail ? message.tail->size() : 0);
  unsent_.push_back(std::move(message));
  write();
}

void ZmtpPeer::write() {
  if (writing_ || unsent_.empty()) return;
  writing_ = true;
  const Message& message = unsent_.front();
  const std::array<net::const_buffer, 2> buffers = {
      net::buffer(message.head), message.tail ? net::buffer(*message.tail) : net::const_buffer()};
  net::async_write(socket_, buffers, [self = shared_from_this()](boost::system::error_code ec, size_t bytes) {
    self->writing_ = false;
    if (self->ended_) return;
    if (ec) return self->close();
    self->unsent_bytes_ -= bytes;
    self->unsent_.pop_front();
    self->write();
    self->read();
  });
}

void ZmtpPeer::read() {
  if (reading_ || ended_ || (role_.answers_first && ready_ && !unsent_.empty())) return;
  reading_ = true;
  socket_.async_read_some(net::buffer(buffer_),
                          [self = shared_from_this()](boost::system::error_code ec, size_t bytes) {
                            self->reading_ = false;
                            if (self->ended_) return;
                            if (ec) return self->close();
                            self->input_.add({self->buffer_, bytes});
                            if (!self->take_input().ok()) return self->close();
                            self->read();
                          });
}

Status ZmtpPeer::take_input() {
  if (!greeted_) {
    const std::optional<std::string> greeting = input_.take(zmtp::kGreetingBytes);
    if (!greeting) return Ok{};
    SPARROW_TRY(zmtp::check_greeting(*greeting));
    greeted_ = true;
  }
  while (!ended_) {
    std::optional<zmtp::Frame> frame = SPARROW_TRY(input_.next());
    if (!frame) break;
    SPARROW_TRY(frame->command ? take_command(*frame) : take_frame(std::move(*frame)));
  }
  return Ok{};
}

Status ZmtpPeer::take_command(const zmtp::Frame& frame) {
  const std::optional<zmtp::Command> command = zmtp::read_command(frame.body);
  if (!command) return Error{Errc::kCorrupt, "a command without a name"};
  if (!ready_) {
    const std::string type = SPARROW_TRY(zmtp::socket_type_of(*command));
    if (std::find(role_.others.begin(), role_.others.end(), type) == role_.others.end())
      return Error{Errc::kInvalidArgument, "a socket of another kind"};
    ready_ = true;
  } else if (command->name == "PING") {
    send({.head = zmtp::pong(command->body)});
  } else {
    role_.on_message(*this, {frame});
  }
  return Ok{};
}

Status ZmtpPeer::take_frame(zmtp::Frame frame) {
  if (!ready_ || frames_.size() == kMaxFrames) return Error{Errc::kCorrupt, "a message before READY"};
  const bool more = frame.more;
  frames_.push_back(std::move(frame));
  if (!more) role_.on_message(*this, std::exchange(frames_, {}));
  return Ok{};
}

}  // namespace sparrow
