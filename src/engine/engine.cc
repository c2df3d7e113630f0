// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <algorithm>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/engine_core.h"

namespace sparrow {
namespace {

// How long the engine sleeps when sequences are there and none can run: all are paused, or wait for a
// deadline. Whatever changes that wakes it sooner.
constexpr std::chrono::milliseconds kNap{10};

Status check(const EngineOptions& options) {
  const auto at_least = [](const char* field, int64_t value, int64_t least) -> Status {
    if (value < least)
      return Error{Errc::kInvalidArgument, strf("{} must be >= {}, got {}", field, least, value), field};
    return Ok{};
  };
  SPARROW_TRY(at_least("cache_tokens", options.cache_tokens, 0));
  SPARROW_TRY(at_least("max_model_tokens", options.max_model_tokens, 0));
  SPARROW_TRY(at_least("max_queued_requests", options.max_queued_requests, 1));
  return at_least("events_per_output", options.events_per_output, 1);
}

}  // namespace

// What clients leave for the engine's thread, and it for them.
struct Engine::Inbox {
  struct Submission {
    RequestId id;
    Request request;
    std::shared_ptr<TokenChannel> channel;
    SchedulerTime arrived;
  };

  mutable std::mutex mutex;
  std::condition_variable work, drained;
  std::vector<Submission> submissions;
  std::vector<RequestId> signals;  // requests to attend to
  std::vector<std::promise<std::vector<WaitingSequence>>> questions;
  RequestId last_id = 0;
  // Of which nothing has run. A client that leaves gives its place back at once: whoever comes next must not
  // be refused because of the dead.
  std::unordered_map<RequestId, std::weak_ptr<TokenChannel>> queued;
  std::vector<std::weak_ptr<TokenChannel>>
      channels;  // of all requests that have not ended, and some that have
  std::optional<Error> failure;
  int num_live = 0;  // requests, those just submitted not counted
  bool draining = false, stopping = false;
  EngineStats stats;
  EngineStats dropped;  // requests that were cancelled before the engine's thread saw them

  // The lock is held.
  void add(const std::shared_ptr<TokenChannel>& channel) {
    if (channels.size() == channels.capacity())
      std::erase_if(channels, [](const auto& known) { return known.expired(); });
    channels.push_back(channel);
  }

  // A client's channel has something to say.
  void signal(RequestId id) {
    std::optional<Submission> unseen;
    {
      const std::lock_guard lock(mutex);
      if (stopping) return;
      if (const auto at = queued.find(id); at != queued.end() && is_cancelled(at->second)) {
        queued.erase(at);
        unseen = take_unseen(id);
      }
      if (!unseen) signals.push_back(id);
    }
    if (!unseen) return work.notify_one();
    drained.notify_all();
    for (int output = 0; output < unseen->request.num_outputs(); ++output)
      unseen->channel->push({.output = output, .finish = FinishReason::kCancelled});
  }

 private:
  static bool is_cancelled(const std::weak_ptr<TokenChannel>& weak) {
    const std::shared_ptr<TokenChannel> channel = weak.lock();
    return channel && channel->cancelled();
  }

  // Kept, those of clients that come and go during a long step would pile up without a limit.
  std::optional<Submission> take_unseen(RequestId id) {
    const auto at = std::lower_bound(submissions.begin(), submissions.end(), id,
                                     [](const Submission& s, RequestId wanted) { return s.id < wanted; });
    if (at == submissions.end() || at->id != id) return std::nullopt;
    std::optional<Submission> taken = std::move(*at);
    submissions.erase(at);
    ++dropped.requests;
    for (const auto& prompt : taken->request.prompts)
      dropped.prompt_tokens += static_cast<int64_t>(prompt.size());
    dropped.cancelled += taken->request.num_outputs();
    return taken;
  }
};

Result<std::unique_ptr<Engine>> Engine::create(const ModelConfig& config, const Weights& weights,
                                               const EngineOptions& options) {
  SPARROW_TRY(check(options));
  auto core = SPARROW_TRY(EngineCore::create(config, weights, options));
  return std::unique_ptr<Engine>(new Engine(std::move(core), options));
}

Result<std::unique_ptr<Engine>> Engine::create(const ModelConfig& config, std::unique_ptr<ModelRunner> runner,
                                               const EngineOptions& options) {
  SPARROW_TRY(check(options));
  auto core = SPARROW_TRY(EngineCore::create(config, std::move(runner), options));
  return std::unique_ptr<Engine>(new Engine(std::move(core), options));
}

Engine::Engine(std::unique_ptr<EngineCore> core, const EngineOptions& options)
    : options_(options),
      limits_(core->request_limits()),
      core_(std::move(core)),
      inbox_(std::make_shared<Inbox>()) {
  info_ = core_->runner().info();
  inbox_->stats = core_->stats();
  thread_ = std::thread([this] { loop(); });
}

Engine::~Engine() {
  stop();
}

Result<std::unique_ptr<TokenStream>> Engine::submit(Request request) {
  SPARROW_TRY(validate(request, limits_));
  std::shared_ptr<TokenChannel> channel;
  RequestId id = 0;
  {
    const std::lock_guard lock(inbox_->mutex);
    if (inbox_->failure) return *inbox_->failure;
    if (inbox_->draining || inbox_->stopping)
      return Error{Errc::kStopped, "the engine takes no more requests: it is shutting down"};
    if (static_cast<int>(inbox_->queued.size()) >= options_.max_queued_requests)
      return Error{Errc::kBusy, strf("{} requests are waiting and the queue holds {}: try again later",
                                     inbox_->queued.size(), options_.max_queued_requests)};
    id = ++inbox_->last_id;
    channel = std::make_shared<TokenChannel>(request.num_outputs(), options_.events_per_output,
                                             [inbox = inbox_, id] { inbox->signal(id); });
    inbox_->queued.emplace(id, channel);
    inbox_->add(channel);
    inbox_->submissions.push_back({id, std::move(request), channel, std::chrono::steady_clock::now()});
  }
  inbox_->work.notify_one();
  return std::make_unique<TokenStream>(std::move(channel), id);
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(inbox_->mutex);
  EngineStats stats = inbox_->stats;
  stats.live_requests = inbox_->num_live + static_cast<int>(inbox_->submissions.size());
  stats.queued_requests = static_cast<int>(inbox_->queued.size());
  stats.requests += inbox_->dropped.requests;
  stats.prompt_tokens += inbox_->dropped.prompt_tokens;
  stats.cancelled += inbox_->dropped.cancelled;
  return stats;
}

std::vector<WaitingSequence> Engine::waiting() const {
  std::future<std::vector<WaitingSequence>> answer;
  {
    const std::lock_guard lock(inbox_->mutex);
    if (inbox_->stopping || inbox_->failure) return {};
    answer = inbox_->questions.emplace_back().get_future();
  }
  inbox_->work.notify_one();
  return answer.get();
}

void Engine::fail(const Error& failure) {
  std::vector<std::weak_ptr<TokenChannel>> channels;
  {
    const std::lock_guard lock(inbox_->mutex);
    if (inbox_->failure) return;
    inbox_->failure = failure;
    channels.swap(inbox_->channels);
  }
  inbox_->drained.notify_all();
  for (const auto& weak : channels)
    if (const std::shared_ptr<TokenChannel> channel = weak.lock()) channel->fail(failure.message);
}

std::optional<Error> Engine::failure() const {
  const std::lock_guard lock(inbox_->mutex);
  return inbox_->failure;
}

void Engine::drain() {
  std::unique_lock lock(inbox_->mutex);
  inbox_->draining = true;
  inbox_->drained.wait(lock, [&] {
    return inbox_->stopping || inbox_->failure || (inbox_->submissions.empty() && inbox_->num_live == 0);
  });
}

void Engine::stop() {
  {
    const std::lock_guard lock(inbox_->mutex);
    inbox_->stopping = true;
  }
  inbox_->work.notify_one();
  inbox_->drained.notify_all();
  if (thread_.joinable()) thread_.join();
}

// Hands what has arrived to the core, sleeping for it if there is nothing else to do. False: stop.
bool Engine::take_inbox(bool can_run) {
  std::vector<Inbox::Submission> submissions;
  std::vector<RequestId> signals;
  std::vector<std::promise<std::vector<WaitingSequence>>> questions;
  bool stopping = false;
  {
    std::unique_lock lock(inbox_->mutex);
    const auto something = [&] {
      return inbox_->stopping || !inbox_->submissions.empty() || !inbox_->signals.empty() ||
             !inbox_->questions.empty();
    };
    if (!can_run && core_->idle())
      inbox_->work.wait(lock, something);
    else if (!can_run)
      inbox_->work.wait_for(lock, kNap, something);
    submissions.swap(inbox_->submissions);
    signals.swap(inbox_->signals);
    questions.swap(inbox_->questions);
    inbox_->num_live += static_cast<int>(submissions.size());
    stopping = inbox_->stopping;
  }
  for (Inbox::Submission& s : submissions)
    core_->add(s.id, std::move(s.request), std::move(s.channel), s.arrived);
  for (const RequestId id : signals) core_->on_signal(id);
  if (stopping) core_->cancel_all();
  for (auto& question : questions) question.set_value(core_->waiting());
  return !stopping;
}

void Engine::loop() {
  bool can_run = false;
  for (bool go_on = true; go_on;) {
    go_on = take_inbox(can_run);
    can_run = go_on && core_->step(std::chrono::steady_clock::now());
    {
      const std::lock_guard lock(inbox_->mutex);
      inbox_->stats = core_->stats();
      for (const RequestId id : core_->take_left_queue()) inbox_->queued.erase(id);
    }
    if (core_->failure()) fail(*core_->failure());
    core_->deliver();
    const std::lock_guard lock(inbox_->mutex);
    inbox_->num_live = inbox_->stats.live_requests;
    if (inbox_->num_live == 0 && inbox_->submissions.empty()) inbox_->drained.notify_all();
  }
}

}  // namespace sparrow
