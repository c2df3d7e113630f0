// SPDX-License-Identifier: Apache-2.0
#include "support/server/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

namespace sparrow::test {

namespace {

using Clock = std::chrono::steady_clock;

int connect_to(int port, const char* address) {
  const bool is_v6 = std::strchr(address, ':') != nullptr;
  const int fd = ::socket(is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(static_cast<uint16_t>(port));
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(static_cast<uint16_t>(port));
  ::inet_pton(is_v6 ? AF_INET6 : AF_INET, address, is_v6 ? static_cast<void*>(&v6.sin6_addr) : &v4.sin_addr);
  const auto* target =
      is_v6 ? reinterpret_cast<const sockaddr*>(&v6) : reinterpret_cast<const sockaddr*>(&v4);
  if (::connect(fd, target, is_v6 ? sizeof(v6) : sizeof(v4)) != 0) {
    ::close(fd);
    return -1;
  }
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return fd;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return text;
}

}  // namespace

std::string RawResponse::header(const std::string& lower_case_name) const {
  const auto found = headers.find(lower_case_name);
  return found == headers.end() ? "" : found->second;
}

RawClient::RawClient(int port, const char* address) : fd_(connect_to(port, address)) {}
RawClient::~RawClient() {
  close();
}
RawClient::RawClient(RawClient&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), in_(std::move(other.in_)), eof_(other.eof_) {}

bool RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

bool RawClient::send_slowly(std::string_view bytes, size_t piece, std::chrono::milliseconds pause) {
  for (size_t i = 0; i < bytes.size(); i += piece) {
    if (!send(bytes.substr(i, piece))) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

bool RawClient::fill(Clock::time_point deadline) {
  if (eof_ || fd_ < 0) return false;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  pollfd waiting{.fd = fd_, .events = POLLIN, .revents = 0};
  if (left < 0 || ::poll(&waiting, 1, static_cast<int>(left)) <= 0) return false;
  char buffer[16 << 10];
  const ssize_t n = ::recv(fd_, buffer, sizeof(buffer), 0);
  if (n <= 0) {
    eof_ = true;
    return false;
  }
  in_.append(buffer, static_cast<size_t>(n));
  return true;
}

bool RawClient::take_line(std::string& line, Clock::time_point deadline) {
  size_t end;
  while ((end = in_.find("\r\n")) == std::string::npos)
    if (!fill(deadline)) return false;
  line = in_.substr(0, end);
  in_.erase(0, end + 2);
  return true;
}

bool RawClient::read_chunks(RawResponse& response, Clock::time_point deadline) {
  for (;;) {
    std::string line;
    if (!take_line(line, deadline)) return false;
    const size_t size = std::stoul(line, nullptr, 16);
    while (in_.size() < size + 2)
      if (!fill(deadline)) return false;
    response.body += in_.substr(0, size);
    if (in_.substr(size, 2) != "\r\n") return false;
    in_.erase(0, size + 2);
    if (size == 0) return true;
    ++response.num_chunks;
  }
}

RawResponse RawClient::read_response(bool to_head, std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  RawResponse response;
  std::string line;
  if (!take_line(line, deadline) || !line.starts_with("HTTP/1.1 ")) return response;
  response.status = std::atoi(line.c_str() + 9);
  while (take_line(line, deadline) && !line.empty()) {
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) response.headers[lower(line.substr(0, colon))] = line.substr(colon + 2);
  }
  if (to_head || response.status == 204 || response.status == 100) {
    response.complete = true;
  } else if (response.header("transfer-encoding") == "chunked") {
    response.complete = read_chunks(response, deadline);
  } else if (const std::string length = response.header("content-length"); !length.empty()) {
    const size_t size = std::stoul(length);
    while (in_.size() < size && fill(deadline)) continue;
    response.complete = in_.size() >= size;
    response.body = in_.substr(0, size);
    in_.erase(0, size);
  } else {
    while (fill(deadline)) continue;
    response.complete = eof_;
    response.body = std::exchange(in_, {});
  }
  return response;
}

std::string RawClient::read_bytes(size_t size, std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  while (in_.size() < size && fill(deadline)) continue;
  return std::exchange(in_, {});
}

std::string RawClient::read_all(std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  while (fill(deadline)) continue;
  return std::exchange(in_, {});
}

bool RawClient::is_closed_within(std::chrono::milliseconds patience) {
  return read_all(patience).empty() && eof_;
}

void RawClient::finish_sending() {
  ::shutdown(fd_, SHUT_WR);
}

void RawClient::reset() {
  const linger hard{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
  close();
}

void RawClient::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

std::string get_request(std::string_view path, std::string_view more_fields) {
  std::string request = "GET ";
  request.append(path).append(" HTTP/1.1\r\nHost: test\r\n").append(more_fields).append("\r\n");
  return request;
}

std::string post_request(std::string_view path, std::string_view body, std::string_view more_fields) {
  std::string request = "POST ";
  request.append(path).append(" HTTP/1.1\r\nHost: test\r\nContent-Length: ");
  request.append(std::to_string(body.size())).append("\r\n").append(more_fields).append("\r\n").append(body);
  return request;
}

std::string post_head(const std::string& fields) {
  return "POST /echo HTTP/1.1\r\nHost: t\r\n" + fields + "\r\n";
}

std::string chunked_post(const std::string& body) {
  return post_head("Transfer-Encoding: chunked\r\n") + body;
}

}  // namespace sparrow::test
