// SPDX-License-Identifier: Apache-2.0
#include "server/responses/background.h"

#include <boost/asio/post.hpp>
#include <utility>

namespace sparrow {

struct BackgroundRuns::Run {
  std::mutex mutex;  // of all that follows
  Pump pump;
  Pump::Clock::time_point received_at;
  bool done = false;

  // Says how it stands. The store must not keep a run alive, nor a run its entry in the store.
  static Result<std::string> tell(const std::shared_ptr<Run>& run) {
    return run->pump.generation->begun(run->pump.waited.has_value(), [weak = std::weak_ptr(run)] {
      if (const auto alive = weak.lock()) alive->cancel();
    });
  }

  // The engine's last event comes all the same, and with it the last step.
  void end() {
    done = true;
    pump.stream->cancel();
    pump.ticket.release();
  }

  // On any thread, when the client has thought better of it.
  void cancel() {
    const std::lock_guard lock(mutex);
    if (done) return;
    pump.generation->end_early(std::nullopt);
    end();
  }
};

struct BackgroundRuns::Door {
  std::mutex mutex;
  BackgroundRuns* runs = nullptr;  // null: closed
};

BackgroundRuns::BackgroundRuns(ServiceMetrics& counts) : counts_(counts), door_(std::make_shared<Door>()) {
  door_->runs = this;
}

BackgroundRuns::~BackgroundRuns() {
  {
    const std::lock_guard lock(door_->mutex);
    door_->runs = nullptr;
  }
  work_.stop();
  work_.join();
  for (const std::shared_ptr<Run>& run : runs_) {
    const std::lock_guard lock(run->mutex);
    run->end();
  }
}

Result<std::string> BackgroundRuns::start(Pump pump, Pump::Clock::time_point received_at) {
  const auto run = std::make_shared<Run>();
  run->pump = std::move(pump);
  run->received_at = received_at;
  std::string body = SPARROW_TRY(Run::tell(run));
  {
    const std::lock_guard lock(mutex_);
    runs_.insert(run);
  }
  run->pump.stream->set_wake([door = door_, weak = std::weak_ptr(run)] {
    const std::lock_guard lock(door->mutex);
    if (!door->runs) return;
    boost::asio::post(door->runs->work_, [runs = door->runs, weak] {
      if (const auto alive = weak.lock()) runs->step(alive);
    });
  });
  return body;
}

void BackgroundRuns::step(const std::shared_ptr<Run>& run) {
  {
    const std::lock_guard lock(run->mutex);
    const bool was_running = run->pump.waited.has_value();
    while (!run->done && run->pump.take(counts_, run->received_at)) {
    }
    openai::Generation& generation = *run->pump.generation;
    if (!run->done && !generation.finished()) {
      if (run->pump.waited && !was_running) (void)Run::tell(run);  // cannot fail: it has its place
      return;
    }
    if (!run->done) {
      if (const auto failure = generation.failure()) {
        generation.end_early(ApiError{.status = 500, .message = failure->message});
      } else {
        generation.response();  // its writer stores it
      }
      run->end();
    }
    run->pump.count(counts_, run->received_at);
  }
  const std::lock_guard lock(mutex_);
  runs_.erase(run);
}

}  // namespace sparrow
