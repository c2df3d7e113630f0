// SPDX-License-Identifier: Apache-2.0
// Many HTTP/1.1 connections on one thread, with a reader of answers of its own. The caller sets the handlers
// of each connection and turns the loop.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sparrow::load {

struct Answer {
  int status = 0;  // 0: none came
  std::string head, body;
  std::string_view field(std::string_view name) const;  // of the head, empty where there is none
};

std::string get(std::string_view path, std::string_view key = "");
std::string post(std::string_view path, std::string_view body, std::string_view key = "");

class Loop;

// One connection; its loop owns it, until it is closed.
class Client {
 public:
  Client(Loop& loop, int fd) : loop_(loop), fd_(fd) {}

  std::function<void(std::string_view)> on_body;  // a piece of the body, without framing
  std::function<void(Answer)> on_answer;          // a whole one has come
  std::function<void()> on_closed;                // by the server, or never connected

  void send(std::string_view request);
  // By us: no handler is called after this. `reset`: what is under way is thrown away.
  void close(bool reset = false);
  bool open() const { return fd_ >= 0; }

 private:
  friend class Loop;
  void readable();
  void writable();
  void take(std::string_view bytes);
  bool take_head();
  bool take_body();
  bool take_chunks();
  void take_piece(size_t size);
  void finish_answer();

  Loop& loop_;
  int fd_;
  bool wants_write_ = false;
  std::string out_, in_;
  Answer answer_;
  bool in_body_ = false, chunked_ = false;
  size_t body_left_ = 0;  // of the body, or of the chunk
};

class Loop {
 public:
  explicit Loop(int port);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // The connection is under way; what is sent waits for it.
  Client& connect();
  // Handles what comes within that time; returns after the first batch.
  void turn(std::chrono::milliseconds patience);
  // Turns until done() or the time is over. False: it is over.
  bool turn_until(const std::function<bool()>& done, std::chrono::milliseconds patience);

 private:
  friend class Client;
  void watch(Client& client, int operation);
  void forget(Client& client);

  int port_, epoll_;
  std::unordered_map<Client*, std::unique_ptr<Client>> clients_;
  std::vector<std::unique_ptr<Client>> closed_;  // their handlers may be running: until the end of the turn
};

// One request on a connection of its own. Status 0: no whole answer in time.
Answer call(int port, std::string_view request,
            std::chrono::milliseconds patience = std::chrono::milliseconds(10'000));

}  // namespace sparrow::load
