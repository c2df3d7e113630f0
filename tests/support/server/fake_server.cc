// SPDX-License-Identifier: Apache-2.0
#include "support/server/fake_server.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>

#include "base/check.h"
#include "base/json/json.h"
#include "base/strf.h"

namespace sparrow::test {
namespace {

// Appends what comes next; false at the end.
bool receive(int fd, std::string& in) {
  char buffer[16384];
  const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
  if (n <= 0) return false;
  in.append(buffer, static_cast<size_t>(n));
  return true;
}

size_t content_length(const std::string& head) {
  static constexpr std::string_view kField = "Content-Length: ";
  const size_t at = head.find(kField);
  size_t length = 0;
  if (at != std::string::npos)
    std::from_chars(head.data() + at + kField.size(), head.data() + head.size(), length);
  return length;
}

}  // namespace

bool FakeServer::Peer::send(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

void FakeServer::Peer::wait_until_gone() const {
  std::string ignored;
  while (receive(fd_, ignored)) ignored.clear();
}

FakeServer::FakeServer(Handler handler, uint32_t ip, int port) : handler_(std::move(handler)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{
      .sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port)), .sin_addr = {htonl(ip)}};
  socklen_t size = sizeof(address);
  SPARROW_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
  SPARROW_CHECK(::listen(listener_, 16) == 0);
  SPARROW_CHECK(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { run(); });
}

FakeServer::~FakeServer() {
  ::shutdown(listener_, SHUT_RDWR);  // accept() returns
  thread_.join();
  ::close(listener_);
}

std::vector<FakeServer::Request> FakeServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void FakeServer::wait_for_answers(size_t count) const {
  std::unique_lock lock(mutex_);
  answered_.wait(lock, [&] { return num_answered_ >= count; });
}

void FakeServer::run() {
  for (int fd; (fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
    answer(fd);
    ::close(fd);
    const std::lock_guard lock(mutex_);
    ++num_answered_;
    answered_.notify_all();
  }
}

void FakeServer::answer(int fd) {
  std::string in;
  size_t head_end;
  while ((head_end = in.find("\r\n\r\n")) == std::string::npos)
    if (!receive(fd, in)) return;
  Request request{.line = in.substr(0, in.find("\r\n")), .head = in.substr(0, head_end), .body = ""};
  const size_t length = content_length(request.head);
  while (in.size() < head_end + 4 + length)
    if (!receive(fd, in)) return;
  request.body = in.substr(head_end + 4);
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
  }
  handler_(request, Peer(fd));
}

std::string http_answer(std::string_view status, std::string_view body, std::string_view type) {
  return strf("HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}", status,
              type, body.size(), body);
}

std::string stream_head() {
  return "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
}

std::string stream_event(std::string_view json) {
  return strf("data: {}\n\n", json);
}

std::string stream_delta(std::string_view delta_json, std::string_view finish_reason) {
  return stream_event(strf(R"({{"choices":[{{"index":0,"delta":{},"finish_reason":{}}}]}})", delta_json,
                           finish_reason.empty() ? "null" : json_quoted(finish_reason)));
}

FakeServer::Handler chat_server(std::string model, FakeServer::Handler chat) {
  return [model = std::move(model), chat = std::move(chat)](const FakeServer::Request& request,
                                                            const FakeServer::Peer& peer) {
    if (!request.line.starts_with("GET /v1/models ")) return chat(request, peer);
    peer.send(http_answer("200 OK", strf(R"({{"data":[{{"id":{}}}]}})", json_quoted(model))));
  };
}

}  // namespace sparrow::test
