// SPDX-License-Identifier: Apache-2.0
// Door: where ranks come in. It listens, lets those in who hold the token, and hands them on with what they
// say of themselves. A connection that is slow, silent or foreign keeps nobody else waiting.
#pragma once

#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/net/hello.h"

namespace sparrow {

struct Guest {
  Fd socket;
  Hello hello;
};

class Door {
 public:
  Door(std::vector<Fd> listeners, std::string token, GiveUp give_up);
  ~Door();

  // The next one, or nullopt where nobody came within a tenth of a second.
  std::optional<Guest> next();
  // Who was turned away last, and why; "" where nobody was.
  std::string turned_away() const;

 private:
  void listen();
  void greet(Fd socket);
  bool over() const;

  std::vector<Fd> listeners_;
  const std::string token_;
  const GiveUp give_up_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Guest> guests_;
  std::string turned_away_;
  bool closing_ = false;
  struct Greeter {
    bool done = false;
    std::thread thread;
  };
  std::list<Greeter> greeters_;  // the listening thread's
  std::thread thread_;
};

// Connects as one who comes in: proves, greets. The errors name the address.
Result<Fd> enter(Result<Fd> connection, const std::string& token, const Hello& hello, const GiveUp& give_up);

}  // namespace sparrow
