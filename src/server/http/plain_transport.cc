// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>

#include <cerrno>

#include "server/http/transport.h"

namespace sparrow {

namespace {

class PlainTransport final : public Transport {
 public:
  explicit PlainTransport(int fd) : fd_(fd) {}

  Io handshake() override { return Io::kDone; }

  Moved read(char* into, size_t size) override {
    const ssize_t n = retry([&] { return ::recv(fd_, into, size, 0); });
    if (n > 0) return {Io::kDone, static_cast<size_t>(n)};
    return {n < 0 && would_block() ? Io::kWantRead : Io::kClosed, 0};
  }

  Moved write(std::string_view bytes) override {
    const ssize_t n = retry([&] { return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); });
    if (n >= 0) return {Io::kDone, static_cast<size_t>(n)};
    return {would_block() ? Io::kWantWrite : Io::kClosed, 0};
  }

  bool has_unread() const override { return false; }
  void finish() override { ::shutdown(fd_, SHUT_WR); }

 private:
  template <typename Call>
  static ssize_t retry(Call call) {
    ssize_t n;
    do n = call();
    while (n < 0 && errno == EINTR);
    return n;
  }
  static bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

  int fd_;
};

}  // namespace

std::unique_ptr<Transport> make_plain_transport(int fd) {
  return std::make_unique<PlainTransport>(fd);
}

}  // namespace sparrow
