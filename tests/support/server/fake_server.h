// SPDX-License-Identifier: Apache-2.0
// FakeServer: answers one request a connection with whatever bytes a test wants: what a hostile, broken or
// slow server may send.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace sparrow::test {

class FakeServer {
 public:
  struct Request {
    std::string line;  // "POST /v1/chat/completions HTTP/1.1"
    std::string head, body;
  };
  class Peer {
   public:
    explicit Peer(int fd) : fd_(fd) {}
    bool send(std::string_view bytes) const;
    // Until the client closes; nothing more is sent.
    void wait_until_gone() const;

   private:
    int fd_;
  };
  using Handler = std::function<void(const Request& request, const Peer& peer)>;

  // `handler` runs on the server's thread, one request after another; then the connection is closed.
  // `address` is in host order; port 0: a free one.
  explicit FakeServer(Handler handler, uint32_t address = 0x7F000001, int port = 0);
  ~FakeServer();
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;

  int port() const { return port_; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<Request> requests() const;
  // Waits until the server is through with this many requests.
  void wait_for_answers(size_t count) const;

 private:
  void run();
  void answer(int fd);

  Handler handler_;
  int listener_ = -1, port_ = 0;
  mutable std::mutex mutex_;
  mutable std::condition_variable answered_;
  std::vector<Request> requests_;
  size_t num_answered_ = 0;
  std::thread thread_;
};

// A whole HTTP answer that ends with the connection.
std::string http_answer(std::string_view status, std::string_view body,
                        std::string_view type = "application/json");
// The start of a stream of events, then each event and the last one.
std::string stream_head();
std::string stream_event(std::string_view json);
std::string stream_delta(std::string_view delta_json, std::string_view finish_reason = "");
inline constexpr std::string_view kStreamEnd = "data: [DONE]\n\n";

// Answers /v1/models with `model` and everything else by `chat`.
FakeServer::Handler chat_server(std::string model, FakeServer::Handler chat);

}  // namespace sparrow::test
