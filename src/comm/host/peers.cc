// SPDX-License-Identifier: Apache-2.0
#include "comm/host/peers.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/strf.h"

namespace sparrow {
namespace {

constexpr std::chrono::milliseconds kSlice{100};
constexpr std::chrono::seconds kNewsTime{2};
constexpr std::chrono::milliseconds kLastWords{200};  // to say who failed, when this process goes

std::chrono::milliseconds ping_interval(std::chrono::milliseconds timeout) {
  return std::max(timeout / 12, std::chrono::milliseconds(5));
}

}  // namespace

Bytes pack_news(int rank, const std::string& reason) {
  return Packer().number(static_cast<uint64_t>(rank)).text(reason).take();
}

Result<ControlLink::Failure> unpack_news(std::span<const std::byte> bytes, int world) {
  Unpacker in(bytes);
  ControlLink::Failure news;
  news.rank = in.small_number();
  news.reason = in.text();
  if (!in.complete() || news.rank >= world) return Error{Errc::kCorrupt, "news that are none"};
  return news;
}

Peers::Peers(Life& life, int rank, std::vector<Fd> sockets, std::chrono::milliseconds ping_timeout)
    : life_(life), rank_(rank), ping_timeout_(ping_timeout), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  SPARROW_CHECK(wake_.get() >= 0);
  for (size_t r = 0; r < sockets.size(); ++r) {
    if (!sockets[r]) continue;
    auto& peer = peers_.emplace_back(std::make_unique<Connection>());
    peer->rank = static_cast<int>(r);
    peer->socket = std::move(sockets[r]);
    peer->heard = Clock::now();
    by_rank_[peer->rank] = peer.get();
  }
  thread_ = std::thread([this] { serve(); });
}

Peers::~Peers() {
  tell(-1, FrameType::kLeft, pack_news(rank_, ""));
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);
  thread_.join();
}

void Peers::post(int rank, FrameType type, std::span<const std::byte> payload) {
  const std::lock_guard lock(mutex_);
  Connection& peer = *by_rank_.at(rank);
  if (!peer.open) return;
  const Bytes frame = make_frame(type, payload);
  peer.out.insert(peer.out.end(), frame.begin(), frame.end());
  flush(peer);
  if (peer.out.empty()) return;
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);
}

void Peers::tell(int but_not, FrameType type, std::span<const std::byte> payload) {
  for (const auto& peer : peers_)
    if (peer->rank != but_not) post(peer->rank, type, payload);
}

Result<Bytes> Peers::take(int rank, FrameType type) {
  std::unique_lock lock(mutex_);
  std::deque<Bytes>& queue = inbox_[{rank, type}];
  while (queue.empty()) {
    if (life_.failed() || life_.has_left(rank)) return life_.error(rank);
    arrived_.wait_for(lock, kSlice);
  }
  Bytes payload = std::move(queue.front());
  queue.pop_front();
  return payload;
}

void Peers::fail(int rank, const std::string& reason) {
  if (!life_.fail(rank, reason)) return;
  tell(-1, FrameType::kFail, pack_news(rank, reason));
  arrived_.notify_all();
}

void Peers::fail_later(int rank, const std::string& reason) {
  {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, kNewsTime, [this] { return life_.failed() || life_.anybody_said_goodbye(); });
  }
  if (!life_.anybody_said_goodbye()) fail(rank, reason);
}

void Peers::flush(Connection& peer) {
  while (peer.sent < peer.out.size()) {
    const ssize_t n = send(peer.socket.get(), peer.out.data() + peer.sent, peer.out.size() - peer.sent,
                           MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // full; where it is broken, reading says so
    peer.sent += static_cast<size_t>(n);
  }
  peer.out.clear();
  peer.sent = 0;
}

void Peers::close(Connection& peer, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!peer.open) return;
    peer.open = false;
    peer.out.clear();
    peer.sent = 0;
    shutdown(peer.socket.get(), SHUT_RDWR);
  }
  if (!life_.said_goodbye(peer.rank)) fail(peer.rank, reason);
  arrived_.notify_all();
}

void Peers::read(Connection& peer) {
  std::array<std::byte, 1 << 16> buffer;  // not zeroed: it is filled before it is read
  for (;;) {
    const ssize_t n = recv(peer.socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0)
      return close(peer, n == 0 ? "its connection was closed"
                                : strf("its connection failed: {}", std::strerror(errno)));
    peer.heard = Clock::now();
    peer.parser.add(std::span(buffer).first(static_cast<size_t>(n)));
    for (;;) {
      Result<std::optional<Frame>> frame = peer.parser.next();
      if (!frame.ok()) return close(peer, "it sent " + frame.error().message);
      if (!frame->has_value()) break;
      handle(peer, std::move(**frame));
    }
    if (static_cast<size_t>(n) < buffer.size()) return;
  }
}

void Peers::handle(const Connection& peer, Frame frame) {
  if (frame.type == FrameType::kPing) return;
  if (frame.type == FrameType::kFail || frame.type == FrameType::kLeft) {
    const auto news = unpack_news(frame.payload, life_.world());
    if (!news.ok()) return fail(peer.rank, "it sent " + news.error().message);
    if (frame.type == FrameType::kFail) {
      if (life_.fail(news->rank, news->reason)) tell(peer.rank, FrameType::kFail, frame.payload);
    } else {
      life_.leave(news->rank);
      if (rank_ == 0) tell(peer.rank, FrameType::kLeft, frame.payload);
    }
    arrived_.notify_all();
    return;
  }
  const std::lock_guard lock(mutex_);
  inbox_[{peer.rank, frame.type}].push_back(std::move(frame.payload));
  arrived_.notify_all();
}

void Peers::ping_and_judge() {
  for (const auto& peer : peers_) {
    const auto silent = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - peer->heard);
    if (silent > ping_timeout_)
      close(*peer, strf("it gave no sign of life for {:.1f} s", static_cast<double>(silent.count()) / 1000));
    const std::lock_guard lock(mutex_);
    if (!peer->open || !peer->out.empty()) continue;
    const Bytes ping = make_frame(FrameType::kPing, {});
    peer->out.insert(peer->out.end(), ping.begin(), ping.end());
    flush(*peer);
  }
}

void Peers::serve() {
  const auto interval = ping_interval(ping_timeout_);
  Clock::time_point next_ping = Clock::now();
  std::optional<Clock::time_point> leave_at;
  std::vector<pollfd> items;
  for (;;) {
    items.assign(1, {.fd = wake_.get(), .events = POLLIN, .revents = 0});
    bool written = true;
    {
      const std::lock_guard lock(mutex_);
      if (leaving_ && !leave_at) leave_at = Clock::now() + (life_.failed() ? kLastWords : ping_timeout_);
      for (const auto& peer : peers_) {
        const auto events = static_cast<short>(peer->out.empty() ? POLLIN : POLLIN | POLLOUT);
        items.push_back({.fd = peer->open ? peer->socket.get() : -1, .events = events, .revents = 0});
        written = written && (!peer->open || peer->out.empty());
      }
    }
    if (leave_at && (written || Clock::now() > *leave_at)) return;
    const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(next_ping - Clock::now());
    poll(items.data(), items.size(), static_cast<int>(std::clamp(wait, {}, interval).count()) + 1);
    uint64_t count;
    if (items[0].revents != 0) (void)!::read(wake_.get(), &count, sizeof count);
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (items[i + 1].revents & POLLOUT) {
        const std::lock_guard lock(mutex_);
        flush(*peers_[i]);
      }
      if (items[i + 1].revents & (POLLIN | POLLHUP | POLLERR)) read(*peers_[i]);
    }
    if (Clock::now() < next_ping) continue;
    next_ping = Clock::now() + interval;
    ping_and_judge();
  }
}

}  // namespace sparrow
