// SPDX-License-Identifier: Apache-2.0
#include "comm/net/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "base/strf.h"

namespace sparrow {
namespace {

constexpr std::chrono::milliseconds kSlice{100};
constexpr int kBacklog = 512;

Error system_error(const std::string& what, int number) {
  return {Errc::kIo, strf("{}: {}", what, std::strerror(number))};
}

struct UnixAddress {
  sockaddr_un address{};
  socklen_t length = 0;
};
Result<UnixAddress> unix_address(const std::string& name) {
  UnixAddress result;
  if (name.size() + 1 > sizeof result.address.sun_path)
    return Error{Errc::kInvalidArgument, strf("the socket name {} is too long", name)};
  result.address.sun_family = AF_UNIX;
  std::memcpy(result.address.sun_path + 1, name.data(), name.size());  // after a 0: an abstract name
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

bool is_same_user(const Fd& socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;
Result<Addresses> resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int rc = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (rc != 0) return Error{Errc::kIo, strf("{}: {}", host, gai_strerror(rc))};
  return Addresses(found, &freeaddrinfo);
}

// Connected, or the reason why not.
Result<Fd> connect_once(int family, const sockaddr* address, socklen_t length, const GiveUp& give_up) {
  Fd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return system_error("socket", errno);
  if (connect(socket.get(), address, length) != 0) {
    if (errno != EINPROGRESS) return system_error("connect", errno);
    while (!wait_for(socket, POLLOUT, kSlice))
      if (give_up && give_up()) return Error{Errc::kIo, "connect: no answer"};
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return system_error("connect", error);
  }
  if (family != AF_UNIX) {
    const int on = 1;
    setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  return socket;
}

// Tries until somebody listens.
template <typename Try>
Result<Fd> connect_patiently(const std::string& name, const GiveUp& give_up, Try&& try_once) {
  for (;;) {
    Result<Fd> socket = try_once();
    if (socket.ok()) return socket;
    if (give_up && give_up()) return Error{Errc::kIo, strf("{}: {}", name, socket.error().message)};
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// Waits for the socket after a call that would have blocked.
Status wait_more(const Fd& socket, short events, const GiveUp& give_up) {
  for (;;) {
    if (wait_for(socket, events, kSlice)) return Ok{};
    if (give_up && give_up()) return Error{Errc::kIo, "no answer from " + peer_name(socket)};
  }
}

}  // namespace

GiveUp at_deadline(std::chrono::steady_clock::time_point deadline) {
  return [deadline] { return std::chrono::steady_clock::now() >= deadline; };
}

bool wait_for(const Fd& socket, short events, std::chrono::milliseconds time) {
  pollfd item{.fd = socket.get(), .events = events, .revents = 0};
  return poll(&item, 1, static_cast<int>(time.count())) > 0;
}

Result<Fd> listen_unix(const std::string& name) {
  const UnixAddress at = SPARROW_TRY(unix_address(name));
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return system_error("socket", errno);
  // Who had the name before may still be on its way out.
  for (int tries = 100; bind(socket.get(), reinterpret_cast<const sockaddr*>(&at.address), at.length) != 0;) {
    if (errno != EADDRINUSE || --tries == 0) return system_error("socket @" + name, errno);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (listen(socket.get(), kBacklog) != 0) return system_error("listen", errno);
  return socket;
}

Result<Fd> connect_unix(const std::string& name, const GiveUp& give_up) {
  const UnixAddress at = SPARROW_TRY(unix_address(name));
  Fd socket = SPARROW_TRY(connect_patiently("socket @" + name, give_up, [&] {
    return connect_once(AF_UNIX, reinterpret_cast<const sockaddr*>(&at.address), at.length, give_up);
  }));
  if (!is_same_user(socket))
    return Error{Errc::kInvalidArgument, strf("socket @{} belongs to another user", name)};
  return socket;
}

Result<Fd> listen_tcp(int port) {
  // One socket for both families, where the machine has IPv6.
  for (const int family : {AF_INET6, AF_INET}) {
    Fd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) continue;
    const int on = 1, off = 0;
    setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in6 v6{};
    sockaddr_in v4{};
    v6.sin6_family = AF_INET6;
    v4.sin_family = AF_INET;
    v6.sin6_port = v4.sin_port = htons(static_cast<uint16_t>(port));
    v6.sin6_addr = in6addr_any;
    v4.sin_addr.s_addr = htonl(INADDR_ANY);
    if (family == AF_INET6) setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    const bool is_v6 = family == AF_INET6;
    const int rc = is_v6 ? bind(socket.get(), reinterpret_cast<const sockaddr*>(&v6), sizeof v6)
                         : bind(socket.get(), reinterpret_cast<const sockaddr*>(&v4), sizeof v4);
    if (rc != 0 && is_v6 && errno != EADDRINUSE) continue;
    if (rc != 0 || listen(socket.get(), kBacklog) != 0) return system_error(strf("port {}", port), errno);
    return socket;
  }
  return system_error(strf("port {}", port), errno);
}

int port_of(const Fd& listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

Result<Fd> connect_tcp(const std::string& host, int port, const GiveUp& give_up) {
  return connect_patiently(strf("{}:{}", host, port), give_up, [&]() -> Result<Fd> {
    const Addresses addresses = SPARROW_TRY(resolve(host, port));
    Result<Fd> last = Error{Errc::kIo, "no address"};
    for (const addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
      last = connect_once(at->ai_family, at->ai_addr, at->ai_addrlen, give_up);
      if (last.ok()) break;
    }
    return last;
  });
}

Fd accept_one(const Fd& listener) {
  Fd socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return {};
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  if (address.ss_family == AF_UNIX) return is_same_user(socket) ? std::move(socket) : Fd();
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return socket;
}

std::string peer_name(const Fd& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
  if (address.ss_family == AF_UNIX) {
    ucred peer{};
    socklen_t size = sizeof peer;
    getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size);
    return strf("process {}", peer.pid);
  }
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof host, port, sizeof port,
              NI_NUMERICHOST | NI_NUMERICSERV);
  return strf("{}:{}", host, port);
}

std::string own_address(const Fd& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  char host[NI_MAXHOST] = "";
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof host, nullptr, 0,
              NI_NUMERICHOST);
  return host;
}

Status send_all(const Fd& socket, std::span<const std::byte> bytes, const GiveUp& give_up) {
  while (!bytes.empty()) {
    const ssize_t n = send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(n));
    } else if (errno == EAGAIN) {
      SPARROW_TRY(wait_more(socket, POLLOUT, give_up));
    } else if (errno != EINTR) {
      return system_error(peer_name(socket), errno);
    }
  }
  return Ok{};
}

Status receive_all(const Fd& socket, std::span<std::byte> bytes, const GiveUp& give_up) {
  while (!bytes.empty()) {
    const ssize_t n = recv(socket.get(), bytes.data(), bytes.size(), 0);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<size_t>(n));
    } else if (n == 0) {
      return Error{Errc::kIo, peer_name(socket) + " closed the connection"};
    } else if (errno == EAGAIN) {
      SPARROW_TRY(wait_more(socket, POLLIN, give_up));
    } else if (errno != EINTR) {
      return system_error(peer_name(socket), errno);
    }
  }
  return Ok{};
}

Status send_fd(const Fd& socket, const Fd& sent, const GiveUp& give_up) {
  char byte = 0;
  iovec part{.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = sent.get();
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  while (sendmsg(socket.get(), &message, MSG_NOSIGNAL) < 0) {
    if (errno != EAGAIN && errno != EINTR) return system_error(peer_name(socket), errno);
    SPARROW_TRY(wait_more(socket, POLLOUT, give_up));
  }
  return Ok{};
}

Result<Fd> receive_fd(const Fd& socket, const GiveUp& give_up) {
  char byte = 0;
  iovec part{.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t n;
  while ((n = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC)) < 0) {
    if (errno != EAGAIN && errno != EINTR) return system_error(peer_name(socket), errno);
    SPARROW_TRY(wait_more(socket, POLLIN, give_up));
  }
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (n != 1 || header == nullptr || header->cmsg_type != SCM_RIGHTS)
    return Error{Errc::kIo, peer_name(socket) + " sent no memory"};
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return Fd(fd);
}

}  // namespace sparrow
