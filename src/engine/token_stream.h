// SPDX-License-Identifier: Apache-2.0
// TokenStream: what comes back from Engine::submit. Its two ends live on different threads: the engine pushes
// and never waits, one client thread takes. It holds a bounded number of events; when a slow reader lets it
// fill up, the engine pauses this request alone until there is room again (a step that runs already adds one
// more for each output).
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"

namespace sparrow {

// What both ends share. The engine's side of it is for the engine alone.
class TokenChannel {
 public:
  // `attention` is called, from the client's thread, when the engine should look at this request again: it
  // was cancelled, or a paused one has room. It must not block.
  TokenChannel(int num_outputs, size_t events_per_output, std::function<void()> attention);

  // Engine side.
  void push(TokenEvent event);  // wakes the reader
  // Any thread: every output that has not ended does, with that error. What is pushed later is dropped.
  void fail(const std::string& error);
  bool has_room();  // for one more event of every output; if not, `attention` will be called once there is
  bool cancelled() const;
  std::vector<int> take_cancelled_outputs();

  // Client side.
  std::optional<TokenEvent> next(std::optional<std::chrono::steady_clock::time_point> deadline);
  std::optional<TokenEvent> try_next();
  bool done() const;
  void set_wake(const std::function<void()>& wake);
  void cancel();
  void cancel(int output);

 private:
  std::optional<TokenEvent> take(std::unique_lock<std::mutex>& lock);

  const int num_outputs_;
  const size_t capacity_;
  const std::function<void()> attention_;

  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<TokenEvent> events_;
  std::function<void()> wake_;
  std::vector<bool> ended_;             // [output] its last event was pushed
  int outputs_left_;                    // whose last event has not been taken
  std::vector<int> cancelled_outputs_;  // that the engine has not been told of
  bool cancelled_ = false, paused_ = false, failed_ = false;
};

// The client's end; one thread at a time. Dropping it cancels what is not finished.
class TokenStream {
 public:
  explicit TokenStream(std::shared_ptr<TokenChannel> channel, uint64_t request_id = 0)
      : channel_(std::move(channel)), request_id_(request_id) {}
  ~TokenStream() { channel_->cancel(); }
  TokenStream(const TokenStream&) = delete;
  TokenStream& operator=(const TokenStream&) = delete;

  // The next event, waiting for it. nullopt: done().
  std::optional<TokenEvent> next() { return channel_->next(std::nullopt); }
  // nullopt: nothing came in time, or done().
  std::optional<TokenEvent> next(std::chrono::milliseconds timeout) {
    return channel_->next(std::chrono::steady_clock::now() + timeout);
  }
  // nullopt: nothing there now, or done().
  std::optional<TokenEvent> try_next() { return channel_->try_next(); }
  // Every output has ended and its last event was taken.
  bool done() const { return channel_->done(); }

  // For an event loop: called when there is something to take after there was nothing, once at least, from
  // the engine's thread (or at once, if events are there already). It must not block and must not take.
  void set_wake(const std::function<void()>& wake) { channel_->set_wake(wake); }

  uint64_t request_id() const { return request_id_; }  // ascending by arrival

  // Ends every unfinished output with FinishReason::kCancelled; its blocks are free after the running steps.
  void cancel() { channel_->cancel(); }
  // Ends one output whose first token has come, and leaves the others alone.
  void cancel(int output) { channel_->cancel(output); }

 private:
  std::shared_ptr<TokenChannel> channel_;
  uint64_t request_id_;
};

}  // namespace sparrow
