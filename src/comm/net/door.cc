// SPDX-License-Identifier: Apache-2.0
#include "comm/net/door.h"

#include <poll.h>

#include <utility>

#include "comm/net/auth.h"

namespace sparrow {
namespace {

constexpr int kSliceMs = 100;
constexpr size_t kMaxGreeters = 256;
constexpr std::chrono::seconds kGreetingTime{20};

}  // namespace

Door::Door(std::vector<Fd> listeners, std::string token, GiveUp give_up)
    : listeners_(std::move(listeners)), token_(std::move(token)), give_up_(std::move(give_up)) {
  thread_ = std::thread([this] { listen(); });
}

Door::~Door() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  thread_.join();
}

bool Door::over() const {
  const std::lock_guard lock(mutex_);
  return closing_ || give_up_();
}

std::string Door::turned_away() const {
  const std::lock_guard lock(mutex_);
  return turned_away_;
}

std::optional<Guest> Door::next() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(kSliceMs), [&] { return !guests_.empty(); });
  if (guests_.empty()) return std::nullopt;
  Guest guest = std::move(guests_.front());
  guests_.pop_front();
  return guest;
}

void Door::listen() {
  std::vector<pollfd> items;
  for (const Fd& listener : listeners_)
    items.push_back({.fd = listener.get(), .events = POLLIN, .revents = 0});
  while (!over()) {
    if (poll(items.data(), items.size(), kSliceMs) <= 0) continue;
    std::unique_lock lock(mutex_);
    for (auto greeter = greeters_.begin(); greeter != greeters_.end();) {
      if (greeter->done) greeter->thread.join();
      greeter = greeter->done ? greeters_.erase(greeter) : std::next(greeter);
    }
    const bool room = greeters_.size() < kMaxGreeters;
    lock.unlock();
    if (!room) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kSliceMs));
      continue;
    }
    for (const Fd& listener : listeners_) {
      Fd socket = accept_one(listener);
      if (!socket) continue;
      lock.lock();
      Greeter& greeter = greeters_.emplace_back();
      lock.unlock();
      greeter.thread = std::thread([this, &greeter, socket = std::move(socket)]() mutable {
        greet(std::move(socket));
        const std::lock_guard done(mutex_);
        greeter.done = true;
      });
    }
  }
  for (Greeter& greeter : greeters_) greeter.thread.join();
}

void Door::greet(Fd socket) {
  const auto late = at_deadline(std::chrono::steady_clock::now() + kGreetingTime);
  const GiveUp give_up = [&] { return late() || over(); };
  const auto greeting = [&]() -> Result<Hello> {
    SPARROW_TRY(admit(socket, token_, give_up));
    const Frame frame = SPARROW_TRY(receive_frame(socket, kMaxGreeting, give_up));
    if (frame.type != FrameType::kHello) return Error{Errc::kCorrupt, peer_name(socket) + " did not greet"};
    return unpack_hello(frame.payload);
  };
  Result<Hello> hello = greeting();
  const std::lock_guard lock(mutex_);
  if (hello.ok())
    guests_.push_back({std::move(socket), std::move(hello).value()});
  else
    turned_away_ = hello.error().message;
  changed_.notify_all();
}

Result<Fd> enter(Result<Fd> connection, const std::string& token, const Hello& hello, const GiveUp& give_up) {
  Fd socket = SPARROW_TRY(std::move(connection));
  SPARROW_TRY(authenticate(socket, token, give_up));
  SPARROW_TRY(send_frame(socket, FrameType::kHello, pack(hello), give_up));
  return socket;
}

}  // namespace sparrow
