// SPDX-License-Identifier: Apache-2.0
#include "server/events/kv_event_stream.h"

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <chrono>

#include "base/strf.h"
#include "server/events/kv_event_format.h"

namespace sparrow {
namespace {

using boost::system::error_code;
using net::ip::tcp;

constexpr size_t kMaxPeers = 256;                     // at one door
constexpr size_t kMaxUnsentBytes = size_t{64} << 20;  // to one subscriber
constexpr size_t kMaxRecentBytes = size_t{64} << 20;  // kept for replay
constexpr std::chrono::milliseconds kRetry{500};
constexpr uint64_t kEndOfReplay = ~uint64_t{0};

std::string sequence_bytes(uint64_t sequence) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(sequence >> shift);
  return bytes;
}

double seconds_since_epoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

KvEndpoint of_group(KvEndpoint endpoint, int group) {
  if (endpoint.port != 0) endpoint.port += group;
  return endpoint;
}

}  // namespace

KvEventStream::KvEventStream(net::io_context& io, const KvEventOptions& options, int group,
                             KvEventCounts& counts)
    : io_(io),
      options_(options),
      group_(group),
      counts_(counts),
      subscribers_(io, {.socket_type = "PUB",
                        .others = {"SUB", "XSUB"},
                        .on_message = [this](ZmtpPeer& peer,
                                             const auto& frames) { subscribe(peer, frames.front()); }}),
      askers_(io, {.socket_type = "ROUTER",
                   .others = {"REQ", "DEALER", "ROUTER"},
                   .answers_first = true,
                   .on_message = [this](ZmtpPeer& peer, const auto& frames) { replay(peer, frames); }}) {
  zmtp::append_frame(topic_frame_, options.topic, /*more=*/true);
  zmtp::append_frame(empty_frame_, "", /*more=*/true);
  subscribers_.endpoint = of_group(options.endpoint, group);
  if (options.replay_endpoint) askers_.endpoint = of_group(*options.replay_endpoint, group);
  for (Door* door : {&subscribers_, &askers_})
    door->role.on_end = [this, door](ZmtpPeer& peer) {
      door->peers.erase(peer.shared_from_this());
      if (!peer.topics.empty()) --counts_.subscribers;
      if (door->endpoint.connect) connect_later(*door);
    };
}

Status KvEventStream::open() {
  if (options_.replay_endpoint) SPARROW_TRY(listen(askers_));
  if (!subscribers_.endpoint.connect) return listen(subscribers_);
  connect(subscribers_);
  return Ok{};
}

void KvEventStream::close() {
  error_code ignored;
  for (Door* door : {&subscribers_, &askers_}) {
    door->endpoint.connect = false;
    door->acceptor.close(ignored);
    door->retry.cancel();
    if (door->connecting) door->connecting->close(ignored);
    const auto peers = door->peers;
    for (const auto& peer : peers) peer->close();
  }
}

Status KvEventStream::listen(Door& door) {
  const auto port = static_cast<unsigned short>(door.endpoint.port);
  const bool any = door.endpoint.host == "*";
  error_code ec;
  std::vector<tcp::endpoint> candidates;
  if (any) {
    candidates = {{net::ip::address_v6::any(), port}, {net::ip::address_v4::any(), port}};
  } else {
    const net::ip::address address = net::ip::make_address(door.endpoint.host, ec);
    if (ec)
      return Error{Errc::kInvalidArgument,
                   strf("--kv-events-config: {} is no address to listen on", door.endpoint.text())};
    candidates = {{address, port}};
  }
  for (const tcp::endpoint& candidate : candidates) {
    error_code ignored;
    door.acceptor.close(ignored);
    ec = {};
    door.acceptor.open(candidate.protocol(), ec);
    if (!ec) door.acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
    if (candidate.address().is_v6()) door.acceptor.set_option(net::ip::v6_only(!any), ignored);
    if (!ec) door.acceptor.bind(candidate, ec);
    if (!ec) door.acceptor.listen(net::socket_base::max_listen_connections, ec);
    if (ec) continue;
    door.endpoint.port = door.acceptor.local_endpoint(ignored).port();
    accept_next(door);
    return Ok{};
  }
  return Error{Errc::kIo,
               strf("--kv-events-config: cannot listen on {}: {}", door.endpoint.text(), ec.message())};
}

void KvEventStream::accept_next(Door& door) {
  door.acceptor.async_accept(io_, [this, &door](error_code ec, tcp::socket socket) {
    if (!door.acceptor.is_open()) return;
    if (!ec) {
      adopt(door, std::move(socket));
      return accept_next(door);
    }
    door.retry.expires_after(kRetry);  // out of descriptors: some will come back
    door.retry.async_wait([this, &door](error_code cancelled) {
      if (!cancelled && door.acceptor.is_open()) accept_next(door);
    });
  });
}

// A name is looked up on this thread, which has nothing better to do: without the other side there is nobody.
void KvEventStream::connect(Door& door) {
  tcp::resolver resolver(io_);
  error_code ec;
  const auto found = resolver.resolve(door.endpoint.host, std::to_string(door.endpoint.port), ec);
  if (ec) return connect_later(door);
  door.connecting.emplace(io_);
  net::async_connect(*door.connecting, found, [this, &door](error_code failed, const tcp::endpoint&) {
    if (!door.endpoint.connect) return;
    if (failed) return connect_later(door);
    adopt(door, std::move(*door.connecting));
  });
}

void KvEventStream::connect_later(Door& door) {
  door.retry.expires_after(kRetry);
  door.retry.async_wait([this, &door](error_code cancelled) {
    if (!cancelled && door.endpoint.connect) connect(door);
  });
}

void KvEventStream::adopt(Door& door, tcp::socket socket) {
  if (door.peers.size() >= kMaxPeers) return;
  const auto peer = std::make_shared<ZmtpPeer>(std::move(socket), door.role);
  door.peers.insert(peer);
  peer->start();
}

// A message that begins with 1 or 0 before ZMTP 3.1, a command since.
void KvEventStream::subscribe(ZmtpPeer& peer, const zmtp::Frame& frame) {
  constexpr size_t kMaxTopics = 1024;
  std::string topic;
  bool wanted = false;
  if (frame.command) {
    const std::optional<zmtp::Command> command = zmtp::read_command(frame.body);
    wanted = command->name == "SUBSCRIBE";
    if (!wanted && command->name != "CANCEL") return;
    topic = command->body;
  } else {
    if (frame.body.empty() || static_cast<uint8_t>(frame.body[0]) > 1) return;
    wanted = frame.body[0] == 1;
    topic = frame.body.substr(1);
  }
  const bool had_any = !peer.topics.empty();
  if (wanted) {
    if (peer.topics.size() < kMaxTopics) peer.topics.push_back(topic);
  } else if (const auto at = std::find(peer.topics.begin(), peer.topics.end(), topic);
             at != peer.topics.end()) {
    peer.topics.erase(at);
  }
  counts_.subscribers += static_cast<int>(!peer.topics.empty()) - static_cast<int>(had_any);
}

std::shared_ptr<const std::string> KvEventStream::frames_of(uint64_t sequence,
                                                            const std::vector<CacheEvent>& events) const {
  auto frames = std::make_shared<std::string>();
  zmtp::append_frame(*frames, sequence_bytes(sequence), /*more=*/true);
  zmtp::append_frame(*frames, encode_kv_events(events, seconds_since_epoch(), group_, options_.format),
                     /*more=*/false);
  return frames;
}

void KvEventStream::publish(const std::vector<CacheEvent>& events) {
  mirror_.apply(events);
  const int64_t num_events = num_kv_events(events);
  const Batch& batch = recent_.emplace_back(Batch{next_sequence_, frames_of(next_sequence_, events)});
  ++next_sequence_;
  recent_bytes_ += batch.frames->size();
  counts_.published += num_events;
  for (const auto& peer : subscribers_.peers) {
    const bool wanted = std::any_of(peer->topics.begin(), peer->topics.end(), [&](const std::string& topic) {
      return options_.topic.starts_with(topic);
    });
    if (!wanted) continue;
    if (peer->unsent_messages() >= static_cast<size_t>(options_.hwm) ||
        peer->unsent_bytes() > kMaxUnsentBytes)
      counts_.dropped += num_events;
    else
      peer->send({topic_frame_, batch.frames});
  }
  while (!recent_.empty() &&
         (recent_.size() > static_cast<size_t>(options_.buffer_steps) || recent_bytes_ > kMaxRecentBytes)) {
    recent_bytes_ -= recent_.front().frames->size();
    recent_.pop_front();
  }
}

// From the number that is asked for on. What is not there any more is replaced by what the cache holds now,
// under the latest number: whoever goes on from there has missed nothing.
void KvEventStream::replay(ZmtpPeer& peer, const std::vector<zmtp::Frame>& request) {
  // An empty frame, which is REQ's, and the number.
  if (request.size() != 2 || !request[0].body.empty() || request[1].body.size() != 8) return;
  uint64_t first = 0;
  for (const char c : request[1].body) first = first << 8 | static_cast<uint8_t>(c);
  const uint64_t oldest = recent_.empty() ? next_sequence_ : recent_.front().sequence;
  if (first < oldest) {
    const uint64_t latest = next_sequence_ - 1;
    peer.send({empty_frame_, frames_of(latest, mirror_.list())});
  } else {
    for (const Batch& batch : recent_)
      if (batch.sequence >= first) peer.send({empty_frame_, batch.frames});
  }
  auto end = std::make_shared<std::string>();
  zmtp::append_frame(*end, sequence_bytes(kEndOfReplay), /*more=*/true);
  zmtp::append_frame(*end, "", /*more=*/false);
  peer.send({empty_frame_, std::move(end)});
}

std::string KvEventStream::endpoint() const {
  return subscribers_.endpoint.text();
}

std::string KvEventStream::replay_endpoint() const {
  return options_.replay_endpoint ? askers_.endpoint.text() : std::string();
}

}  // namespace sparrow
