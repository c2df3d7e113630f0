// SPDX-License-Identifier: Apache-2.0
#include "client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "base/strf.h"

namespace sparrow::load {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kLineEnd = "\r\n";

bool same_letters(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return (x | 0x20) == (y | 0x20); });
}

std::string key_field(std::string_view key) {
  return key.empty() ? "" : strf("Authorization: Bearer {}\r\n", key);
}

}  // namespace

std::string_view Answer::field(std::string_view name) const {
  for (std::string_view rest = head; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find(kLineEnd));
    rest.remove_prefix(std::min(line.size() + kLineEnd.size(), rest.size()));
    const size_t colon = line.find(": ");
    if (colon != std::string_view::npos && same_letters(line.substr(0, colon), name))
      return line.substr(colon + 2);
  }
  return "";
}

std::string get(std::string_view path, std::string_view key) {
  return strf("GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", path, key_field(key));
}

std::string post(std::string_view path, std::string_view body, std::string_view key) {
  return strf(
      "POST {} HTTP/1.1\r\nHost: localhost\r\n{}Content-Type: application/json\r\nContent-Length: "
      "{}\r\n\r\n{}",
      path, key_field(key), body.size(), body);
}

void Client::send(std::string_view request) {
  if (!open()) return;
  out_ += request;
  writable();
}

void Client::writable() {
  while (!out_.empty()) {
    const ssize_t n = ::send(fd_, out_.data(), out_.size(), MSG_NOSIGNAL);
    if (n < 0) break;  // not yet, or the reader will find out why
    out_.erase(0, static_cast<size_t>(n));
  }
  if (std::exchange(wants_write_, !out_.empty()) != wants_write_) loop_.watch(*this, EPOLL_CTL_MOD);
}

void Client::close(bool reset) {
  if (!open()) return;
  if (reset) {
    const linger now{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  }
  ::close(std::exchange(fd_, -1));
  loop_.forget(*this);
}

void Client::readable() {
  char buffer[64 << 10];
  while (open()) {
    const ssize_t n = ::recv(fd_, buffer, sizeof(buffer), 0);
    if (n > 0) {
      take({buffer, static_cast<size_t>(n)});
      if (n < static_cast<ssize_t>(sizeof(buffer))) return;
      continue;
    }
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    const auto on_closed = this->on_closed;
    close();
    if (on_closed) on_closed();
  }
}

void Client::take(std::string_view bytes) {
  in_ += bytes;
  while (open() && (in_body_ ? take_body() : take_head())) continue;
}

// True: there is more to take.
bool Client::take_head() {
  const size_t end = in_.find("\r\n\r\n");
  if (end == std::string::npos) return false;
  answer_ = {.head = in_.substr(0, end + kLineEnd.size())};
  in_.erase(0, end + 4);
  answer_.status = std::atoi(answer_.head.c_str() + sizeof("HTTP/1.1"));
  chunked_ = answer_.field("Transfer-Encoding") == "chunked";
  body_left_ =
      chunked_ ? 0 : std::strtoull(std::string(answer_.field("Content-Length")).c_str(), nullptr, 10);
  in_body_ = true;
  return true;
}

bool Client::take_body() {
  if (chunked_) return take_chunks();
  const size_t size = std::min(body_left_, in_.size());
  if (size > 0) take_piece(size);
  body_left_ -= size;
  if (body_left_ > 0) return false;
  finish_answer();
  return !in_.empty();
}

bool Client::take_chunks() {
  const size_t line = in_.find(kLineEnd);
  if (line == std::string::npos) return false;
  size_t size = 0;
  std::from_chars(in_.data(), in_.data() + line, size, 16);
  const size_t all = line + kLineEnd.size() + size + kLineEnd.size();
  if (in_.size() < all) return false;
  in_.erase(0, line + kLineEnd.size());
  if (size > 0) take_piece(size);
  in_.erase(0, kLineEnd.size());
  if (size == 0) finish_answer();
  return true;
}

void Client::take_piece(size_t size) {
  const std::string piece = in_.substr(0, size);
  in_.erase(0, size);
  answer_.body += piece;
  if (on_body) on_body(piece);
}

void Client::finish_answer() {
  in_body_ = false;
  if (open() && on_answer) on_answer(std::exchange(answer_, {}));
}

Loop::Loop(int port) : port_(port), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  SPARROW_CHECK(epoll_ >= 0);
}

Loop::~Loop() {
  for (const auto& [client, owned] : clients_) ::close(client->fd_);
  ::close(epoll_);
}

Client& Loop::connect() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  SPARROW_CHECK(fd >= 0);  // raise the limit of open files
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  sockaddr_in address{.sin_family = AF_INET,
                      .sin_port = htons(static_cast<uint16_t>(port_)),
                      .sin_addr = {htonl(INADDR_LOOPBACK)}};
  // A failure shows when it is read from.
  (void)!::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  auto client = std::make_unique<Client>(*this, fd);
  Client& out = *client;
  clients_.emplace(&out, std::move(client));
  watch(out, EPOLL_CTL_ADD);
  return out;
}

void Loop::watch(Client& client, int operation) {
  epoll_event event{.events = EPOLLIN | (client.wants_write_ ? uint32_t{EPOLLOUT} : 0u),
                    .data = {.ptr = &client}};
  ::epoll_ctl(epoll_, operation, client.fd_, &event);
}

void Loop::forget(Client& client) {
  const auto found = clients_.find(&client);
  closed_.push_back(std::move(found->second));
  clients_.erase(found);
}

void Loop::turn(std::chrono::milliseconds patience) {
  epoll_event events[256];
  const int n = ::epoll_wait(epoll_, events, 256, static_cast<int>(patience.count()));
  for (int i = 0; i < n; ++i) {
    Client& client = *static_cast<Client*>(events[i].data.ptr);
    if (client.open() && (events[i].events & EPOLLOUT) != 0) client.writable();
    if (client.open() && (events[i].events & ~uint32_t{EPOLLOUT}) != 0) client.readable();
  }
  closed_.clear();
}

bool Loop::turn_until(const std::function<bool()>& done, std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  while (!done()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    turn(std::min(left, std::chrono::milliseconds(100)));
  }
  return true;
}

Answer call(int port, std::string_view request, std::chrono::milliseconds patience) {
  Loop loop(port);
  Answer answer;
  bool over = false;
  Client& client = loop.connect();
  client.on_answer = [&](Answer whole) {
    answer = std::move(whole);
    over = true;
  };
  client.on_closed = [&] { over = true; };
  client.send(request);
  loop.turn_until([&] { return over; }, patience);
  return answer;
}

}  // namespace sparrow::load
