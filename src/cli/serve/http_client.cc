// SPDX-License-Identifier: Apache-2.0
#include "cli/serve/http_client.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>

namespace sparrow::cli {
namespace {

constexpr size_t kMaxHeadBytes = 64 << 10;

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  bool send_all(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  // Appends what comes next. False: the end, an error, or told to stop.
  bool receive(std::string& out, const std::atomic<bool>* stop) const {
    for (;;) {
      if (stop && stop->load()) return false;
      pollfd waiting{.fd = fd_, .events = POLLIN, .revents = 0};
      if (poll(&waiting, 1, 100) == 0) continue;
      char buffer[16384];
      const ssize_t got = recv(fd_, buffer, sizeof buffer, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      out.append(buffer, static_cast<size_t>(got));
      return true;
    }
  }

 private:
  int fd_;
};

Result<std::unique_ptr<Socket>> connect_to(const HttpUrl& url) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int failed = getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &list))
    return Error{Errc::kIo, strf("{} cannot be found: {}", url.host, gai_strerror(failed))};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, freeaddrinfo);
  std::string reason = "no address";
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    const int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (fd < 0) continue;
    auto connected = std::make_unique<Socket>(fd);
    if (connect(fd, at->ai_addr, at->ai_addrlen) == 0) return connected;
    reason = std::strerror(errno);
  }
  return Error{Errc::kIo, strf("no server at {}:{}: {}", url.host, url.port, reason)};
}

std::string head_of(const HttpUrl& url, const HttpCall& call) {
  std::string head = strf("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\n", call.method, url.path,
                          call.path, url.host, url.port);
  if (!call.api_key.empty()) head += strf("Authorization: Bearer {}\r\n", call.api_key);
  if (!call.body.empty())
    head += strf("Content-Type: application/json\r\nContent-Length: {}\r\n", call.body.size());
  return head + "\r\n";
}

// Takes chunks off the front of `in`; what is incomplete stays there. False: this is no chunked body.
bool take_chunks(std::string& in, const std::function<void(std::string_view)>& on_body) {
  size_t at = 0;
  for (;;) {
    const size_t line_end = in.find("\r\n", at);
    if (line_end == std::string::npos) break;
    size_t size = 0;
    const auto [end, failed] = std::from_chars(in.data() + at, in.data() + line_end, size, 16);
    if (failed != std::errc{} || end == in.data() + at || size > (size_t{1} << 30)) return false;
    if (in.size() - (line_end + 2) < size + 2) break;
    if (size > 0) on_body(std::string_view(in).substr(line_end + 2, size));
    at = line_end + 2 + size + 2;
  }
  in.erase(0, at);
  return true;
}

bool has_chunked_body(std::string head) {
  std::transform(head.begin(), head.end(), head.begin(), [](unsigned char c) { return std::tolower(c); });
  return head.find("\r\ntransfer-encoding: chunked") != std::string::npos;
}

}  // namespace

Result<HttpUrl> parse_http_url(std::string_view text) {
  const Error error{Errc::kInvalidArgument, strf("--url must look like http://127.0.0.1:8000, got {}", text)};
  if (text.starts_with("https://"))
    return Error{Errc::kUnsupported,
                 strf("--url {}: only http yet; go through a local proxy for https", text)};
  if (!text.starts_with("http://")) return error;
  text.remove_prefix(7);
  const size_t slash = std::min(text.find('/'), text.size());
  std::string_view authority = text.substr(0, slash), path = text.substr(slash);
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path.ends_with("/v1")) path.remove_suffix(3);  // as clients of OpenAI write it
  const size_t colon = authority.find_last_of(':');
  const bool has_port =
      colon != std::string_view::npos && authority.find(']', colon) == std::string_view::npos;
  std::string_view host = has_port ? authority.substr(0, colon) : authority;
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host.empty()) return error;
  return HttpUrl{.host = std::string(host),
                 .port = std::string(has_port ? authority.substr(colon + 1) : "80"),
                 .path = std::string(path)};
}

Result<int> http_call(const HttpUrl& url, const HttpCall& call,
                      const std::function<void(std::string_view)>& on_body) {
  const auto socket = SPARROW_TRY(connect_to(url));
  if (!socket->send_all(head_of(url, call)) || !socket->send_all(call.body))
    return Error{Errc::kIo, "the server closed the connection"};
  std::string in;
  size_t head_end;
  while ((head_end = in.find("\r\n\r\n")) == std::string::npos) {
    if (in.size() > kMaxHeadBytes || !socket->receive(in, call.stop))
      return Error{Errc::kIo, "the server gave no answer"};
  }
  int status = 0;
  if (!in.starts_with("HTTP/1.") || in.size() < 12 ||
      std::from_chars(in.data() + 9, in.data() + 12, status).ec != std::errc{})
    return Error{Errc::kIo, "what answers there does not speak HTTP"};
  const bool chunked = has_chunked_body(in.substr(0, head_end));
  in.erase(0, head_end + 4);
  for (;;) {
    if (chunked) {
      if (!take_chunks(in, on_body)) return Error{Errc::kIo, "the server's answer is garbled"};
    } else {
      if (!in.empty()) on_body(in);
      in.clear();
    }
    if (!socket->receive(in, call.stop)) return status;
  }
}

}  // namespace sparrow::cli
