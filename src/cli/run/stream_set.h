// SPDX-License-Identifier: Apache-2.0
// StreamSet: many token streams read by one thread, which sleeps while none has anything.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/token_stream.h"

namespace sparrow::cli {

class StreamSet {
 public:
  // `tag` names the stream's events.
  void add(size_t tag, std::unique_ptr<TokenStream> stream);

  // Waits until something is there, at most `timeout`, and hands out all events; streams that are done leave.
  void take(std::chrono::milliseconds timeout,
            const std::function<void(size_t tag, TokenEvent event)>& event);

  size_t size() const { return streams_.size(); }

 private:
  // Shared with the engine's thread, which may call once more after the stream has gone.
  struct Bell {
    std::mutex mutex;
    std::condition_variable rung;
    bool ringing = false;
  };
  struct Member {
    size_t tag;
    std::unique_ptr<TokenStream> stream;
  };

  std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();
  std::vector<Member> streams_;
};

}  // namespace sparrow::cli
