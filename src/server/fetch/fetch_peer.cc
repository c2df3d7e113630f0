// SPDX-License-Identifier: Apache-2.0
#include "server/fetch/fetch_peer.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/strf.h"

namespace sparrow {
namespace {

// How long a cancelled fetch goes on at most.
constexpr std::chrono::milliseconds kSlice{50};

Error network_error(std::string message) {
  return {Errc::kInvalidArgument, std::move(message)};
}

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  SocketAddress(const IpAddress& address, uint16_t port) {
    if (address.is_v6()) {
      auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
      v6.sin6_family = AF_INET6;
      v6.sin6_port = htons(port);
      std::memcpy(&v6.sin6_addr, address.bytes().data(), sizeof v6.sin6_addr);
      size = sizeof v6;
    } else {
      auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
      v4.sin_family = AF_INET;
      v4.sin_port = htons(port);
      std::memcpy(&v4.sin_addr, address.bytes().data(), sizeof v4.sin_addr);
      size = sizeof v4;
    }
  }
};

Status wait_for(int fd, short events, const FetchEnd& end) {
  for (;;) {
    SPARROW_TRY(end.check());
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end.deadline - std::chrono::steady_clock::now());
    pollfd item{.fd = fd, .events = events, .revents = 0};
    if (::poll(&item, 1, static_cast<int>(std::clamp(left, std::chrono::milliseconds(0), kSlice).count())) >
        0)
      return Ok{};
  }
}

// An empty Fd: this address does not answer.
Result<Fd> connect_one(const IpAddress& address, uint16_t port, const FetchEnd& end) {
  Fd socket(::socket(address.is_v6() ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return Error{Errc::kIo, strf("fetching media, socket: {}", std::strerror(errno))};
  const SocketAddress to(address, port);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.size) == 0) return socket;
  if (errno != EINPROGRESS) return Fd();
  SPARROW_TRY(wait_for(socket.get(), POLLOUT, end));
  int failed = 0;
  socklen_t size = sizeof failed;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &failed, &size);
  if (failed != 0) return Fd();
  return socket;
}

}  // namespace

Status FetchEnd::check() const {
  if (cancelled && cancelled->load(std::memory_order_relaxed)) return Error{Errc::kStopped, "cancelled"};
  if (std::chrono::steady_clock::now() >= deadline) return network_error("it took too long");
  return Ok{};
}

Result<FetchPeer> FetchPeer::connect(std::span<const IpAddress> addresses, uint16_t port,
                                     const FetchEnd& end) {
  for (const IpAddress& address : addresses) {
    Fd socket = SPARROW_TRY(connect_one(address, port, end));
    if (socket) return FetchPeer(std::move(socket), end);
  }
  return network_error("its server cannot be reached");
}

FetchPeer::FetchPeer(Fd socket, const FetchEnd& end)
    : socket_(std::move(socket)), end_(end), transport_(make_plain_transport(socket_.get())) {}

Status FetchPeer::secure(const TlsTrust& trust, const std::string& host, bool is_address) {
  transport_ = trust.connect(socket_.get(), host, is_address);
  if (!transport_) return Error{Errc::kIo, "fetching media: TLS has no memory"};
  for (;;) {
    const Transport::Io io = transport_->handshake();
    if (io == Transport::Io::kDone) return Ok{};
    if (io == Transport::Io::kClosed)
      return network_error("no TLS with its server, or no valid certificate of its host");
    SPARROW_TRY(wait(io));
  }
}

Status FetchPeer::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const Transport::Moved moved = transport_->write(bytes);
    bytes.remove_prefix(moved.bytes);
    if (moved.io == Transport::Io::kClosed) return network_error("its server closed the connection");
    if (moved.io != Transport::Io::kDone) SPARROW_TRY(wait(moved.io));
  }
  return Ok{};
}

Result<size_t> FetchPeer::read(std::span<char> into) {
  for (;;) {
    SPARROW_TRY(end_.check());
    const Transport::Moved moved = transport_->read(into.data(), into.size());
    if (moved.io == Transport::Io::kDone) return moved.bytes;
    if (moved.io == Transport::Io::kClosed) return size_t{0};
    SPARROW_TRY(wait(moved.io));
  }
}

Status FetchPeer::wait(Transport::Io wanted) const {
  return wait_for(socket_.get(), wanted == Transport::Io::kWantWrite ? POLLOUT : POLLIN, end_);
}

}  // namespace sparrow
