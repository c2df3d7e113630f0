// SPDX-License-Identifier: Apache-2.0
#include "cli/run/stream_set.h"

#include <utility>

namespace sparrow::cli {

void StreamSet::add(size_t tag, std::unique_ptr<TokenStream> stream) {
  stream->set_wake([bell = bell_] {
    {
      const std::lock_guard lock(bell->mutex);
      bell->ringing = true;
    }
    bell->rung.notify_one();
  });
  streams_.push_back({tag, std::move(stream)});
}

void StreamSet::take(std::chrono::milliseconds timeout,
                     const std::function<void(size_t tag, TokenEvent event)>& event) {
  {
    std::unique_lock lock(bell_->mutex);
    bell_->rung.wait_for(lock, timeout, [&] { return bell_->ringing; });
    bell_->ringing = false;
  }
  for (Member& member : streams_)
    while (std::optional<TokenEvent> taken = member.stream->try_next()) event(member.tag, std::move(*taken));
  std::erase_if(streams_, [](const Member& member) { return member.stream->done(); });
}

}  // namespace sparrow::cli
