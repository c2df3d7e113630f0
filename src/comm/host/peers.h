// SPDX-License-Identifier: Apache-2.0
// Peers: the sockets between rank 0 and every other rank, and the thread that serves them. It pings, notices
// who is gone or silent, spreads the news, and keeps what arrives until somebody asks for it. All news go
// through rank 0.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/host/life.h"
#include "comm/net/frame.h"

namespace sparrow {

class Peers {
 public:
  // `sockets` by rank: rank 0 has those of all others, they have rank 0's.
  Peers(Life& life, int rank, std::vector<Fd> sockets, std::chrono::milliseconds ping_timeout);
  // Says goodbye.
  ~Peers();

  // Any thread. Never waits: what the socket does not take is sent later.
  void post(int rank, FrameType type, std::span<const std::byte> payload);
  // The next frame of that type from that rank, in the order in which they came.
  Result<Bytes> take(int rank, FrameType type);
  // Any thread: notes the failure here and tells the others.
  void fail(int rank, const std::string& reason);
  // The same for another socket that broke: who is gone is known here soon, and is the better answer.
  void fail_later(int rank, const std::string& reason);

 private:
  using Clock = std::chrono::steady_clock;
  struct Connection {
    int rank = 0;
    Fd socket;
    FrameParser parser;         // the serving thread's
    Clock::time_point heard{};  // the serving thread's
    Bytes out;                  // with the lock, and so what follows
    size_t sent = 0;            // of it
    bool open = true;
  };

  void serve();
  void read(Connection& peer);
  void handle(const Connection& peer, Frame frame);
  void flush(Connection& peer);  // with the lock
  void tell(int but_not, FrameType type, std::span<const std::byte> payload);
  void close(Connection& peer, const std::string& reason);
  void ping_and_judge();

  Life& life_;
  const int rank_;
  const std::chrono::milliseconds ping_timeout_;
  std::vector<std::unique_ptr<Connection>> peers_;
  std::map<int, Connection*> by_rank_;
  Fd wake_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::pair<int, FrameType>, std::deque<Bytes>> inbox_;
  bool leaving_ = false;
  std::thread thread_;
};

Bytes pack_news(int rank, const std::string& reason);
Result<ControlLink::Failure> unpack_news(std::span<const std::byte> bytes, int world);

}  // namespace sparrow
