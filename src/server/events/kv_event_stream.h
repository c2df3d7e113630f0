// SPDX-License-Identifier: Apache-2.0
// KvEventStream: the events of one data-parallel group, numbered, on their way to its subscribers, and the
// latest of them again for whoever missed some. One io thread.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "server/events/kv_event_options.h"
#include "server/events/kv_mirror.h"
#include "server/events/zmtp_peer.h"

namespace sparrow {

// Any thread.
struct KvEventCounts {
  std::atomic<int64_t> published{0};  // blocks stored and removed
  std::atomic<int64_t> dropped{0};    // of these, for a subscriber or before they were published
  std::atomic<int> subscribers{0};
};

class KvEventStream {
 public:
  // Ports are those of the options, and as many more as the group's index. Io, options and counts outlive it.
  KvEventStream(net::io_context& io, const KvEventOptions& options, int group, KvEventCounts& counts);
  Status open();
  void close();

  void publish(const std::vector<CacheEvent>& events);

  std::string endpoint() const;
  std::string replay_endpoint() const;  // empty: there is none

 private:
  // One end of the stream: a listening socket, or whom it connects to, and who is there.
  struct Door {
    Door(net::io_context& io, ZmtpPeer::Role role) : acceptor(io), retry(io), role(std::move(role)) {}
    KvEndpoint endpoint;
    net::ip::tcp::acceptor acceptor;
    std::optional<net::ip::tcp::socket> connecting;
    net::steady_timer retry;
    ZmtpPeer::Role role;
    std::set<std::shared_ptr<ZmtpPeer>> peers;
  };
  struct Batch {
    uint64_t sequence;
    std::shared_ptr<const std::string> frames;  // number and payload
  };

  Status listen(Door& door);
  void accept_next(Door& door);
  void connect(Door& door);
  void connect_later(Door& door);
  void adopt(Door& door, net::ip::tcp::socket socket);
  void subscribe(ZmtpPeer& peer, const zmtp::Frame& frame);
  void replay(ZmtpPeer& peer, const std::vector<zmtp::Frame>& request);
  std::shared_ptr<const std::string> frames_of(uint64_t sequence,
                                               const std::vector<CacheEvent>& events) const;

  net::io_context& io_;
  const KvEventOptions& options_;
  const int group_;
  KvEventCounts& counts_;
  Door subscribers_, askers_;
  std::string topic_frame_, empty_frame_;
  uint64_t next_sequence_ = 0;
  std::deque<Batch> recent_;
  size_t recent_bytes_ = 0;
  KvMirror mirror_;
};

}  // namespace sparrow
