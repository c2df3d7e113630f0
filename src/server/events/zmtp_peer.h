// SPDX-License-Identifier: Apache-2.0
// ZmtpPeer: one connection that speaks ZMTP, from its greeting to its end. Lives on one io thread; ends when
// the other side breaks the protocol, or the connection does.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "server/events/zmtp.h"

namespace sparrow {

namespace net = boost::asio;

class ZmtpPeer : public std::enable_shared_from_this<ZmtpPeer> {
 public:
  struct Role {
    std::string socket_type;          // ours
    std::vector<std::string> others;  // that may talk to it
    // While something waits to be sent nothing is read: whoever asks must take the answers.
    bool answers_first = false;
    // A message's frames. Commands other than the protocol's own come as one frame.
    std::function<void(ZmtpPeer&, const std::vector<zmtp::Frame>&)> on_message;
    std::function<void(ZmtpPeer&)> on_end;
  };
  // Frames, of which the last are shared by many messages.
  struct Message {
    std::string head;
    std::shared_ptr<const std::string> tail;
  };

  // The role outlives the peer.
  ZmtpPeer(net::ip::tcp::socket socket, const Role& role);

  void start();
  void close();
  void send(Message message);
  size_t unsent_messages() const { return unsent_.size(); }
  size_t unsent_bytes() const { return unsent_bytes_; }

  std::vector<std::string> topics;  // that it has subscribed to

 private:
  void read();
  void write();
  Status take_input();
  Status take_frame(zmtp::Frame frame);
  Status take_command(const zmtp::Frame& frame);

  net::ip::tcp::socket socket_;
  const Role& role_;
  bool greeted_ = false, ready_ = false, reading_ = false, writing_ = false, ended_ = false;
  char buffer_[4096];
  zmtp::FrameReader input_;
  std::vector<zmtp::Frame> frames_;  // of a message that is not whole yet
  std::deque<Message> unsent_;       // the first is being sent
  size_t unsent_bytes_ = 0;
};

}  // namespace sparrow
