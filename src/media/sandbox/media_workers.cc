// SPDX-License-Identifier: Apache-2.0
#include "media/sandbox/media_workers.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/strf.h"

namespace sparrow {
namespace {

// A worker is replaced after this much work: leaks of a decoder end with it. Its limit of processor time,
// which counts for its whole life, lies above.
constexpr std::chrono::seconds kLife{60};
constexpr uint64_t kLifeCpuSeconds = 600;

// Whose death nobody is told of cannot be waited for, and its number may be another process's by then.
void let_children_be_waited_for() {
  struct sigaction action {};
  ::sigaction(SIGCHLD, nullptr, &action);
  if (action.sa_handler == SIG_IGN) ::signal(SIGCHLD, SIG_DFL);
}

}  // namespace

Result<std::unique_ptr<MediaWorkers>> MediaWorkers::start(const MediaWorkersOptions& options) {
  if (options.workers < 1)
    return Error{Errc::kInvalidArgument, strf("media-workers is {}, and must be at least 1", options.workers),
                 "media-workers"};
  let_children_be_waited_for();
  std::unique_ptr<MediaWorkers> workers(new MediaWorkers(options));
  if (!workers->wake_) return Error{Errc::kIo, strf("media workers, eventfd: {}", std::strerror(errno))};
  std::promise<Status> promise;
  std::future<Status> started = promise.get_future();
  // All processes are started by one thread that lives as long as they: the kernel kills them when it ends.
  workers->thread_ =
      std::thread([w = workers.get(), p = std::move(promise)]() mutable { w->run(std::move(p)); });
  SPARROW_TRY(started.get());
  return workers;
}

MediaWorkers::MediaWorkers(const MediaWorkersOptions& options)
    : options_(options),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      slots_(static_cast<size_t>(std::max(options.workers, 0))),
      queue_(options.all, options.of_owner) {}

MediaWorkers::~MediaWorkers() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
}

WorkerSetup MediaWorkers::setup() const {
  return {.input_capacity = options_.max_input_bytes,
          .output_capacity = std::max(options_.max_output_bytes, kMaxErrorText),
          .memory_bytes = options_.memory_bytes,
          .cpu_seconds = kLifeCpuSeconds};
}

Result<uint64_t> MediaWorkers::submit(MediaJob job) {
  const size_t bytes = job.options.size() + job.bytes.size();
  if (bytes > options_.max_input_bytes)
    return Error{Errc::kInvalidArgument,
                 strf("{} bytes to decode; at most {} are allowed", bytes, options_.max_input_bytes)};
  if (job.max_output_bytes > options_.max_output_bytes)
    return Error{Errc::kInvalidArgument,
                 strf("a picture of {} bytes as the model sees it; at most {} are allowed",
                      job.max_output_bytes, options_.max_output_bytes)};
  uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return Error{Errc::kStopped, "the server is shutting down"};
    id = ++last_id_;
    const std::string owner = job.owner;
    const uint64_t cost = std::max<uint64_t>(job.cost, 1);
    using Queue = FairQueue<Running>;
    const Queue::Push pushed = queue_.push(owner, bytes, cost, Running{id, bytes, std::move(job)});
    if (pushed != Queue::Push::kTaken)
      return Error{Errc::kBusy, pushed == Queue::Push::kFull
                                    ? "too many pictures wait to be decoded"
                                    : "too many pictures of this key wait to be decoded"};
  }
  ++counts_.accepted;
  wake();
  return id;
}

void MediaWorkers::cancel(uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back(id);
  }
  wake();
}

int MediaWorkers::num_waiting() const {
  const std::lock_guard lock(mutex_);
  return queue_.num_waiting();
}

void MediaWorkers::wake() {
  ::eventfd_write(wake_.get(), 1);
}

void MediaWorkers::run(std::promise<Status> started) {
  const Status proved = prove();
  started.set_value(proved);
  if (proved.ok()) loop();
  stop_all();
}

// One worker, until it is locked up: what fails here would fail for every job.
Status MediaWorkers::prove() {
  Slot& slot = slots_.front();
  ++counts_.started;
  slot.process = SPARROW_TRY(WorkerProcess::start(options_.command, setup()));
  const auto deadline = Clock::now() + options_.start_time;
  while (!slot.process->is_ready()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return Error{Errc::kIo, "a media worker does not start"};
    pollfd item{.fd = slot.process->socket(), .events = POLLIN, .revents = 0};
    ::poll(&item, 1, static_cast<int>(left.count()));
    if (const auto outcome = slot.process->receive())
      return Error{Errc::kIo, strf("media workers do not run here: {}", outcome->error().message)};
  }
  return Ok{};
}

void MediaWorkers::loop() {
  for (;;) {
    std::vector<uint64_t> cancelled;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      cancelled.swap(cancelled_);
    }
    drop_cancelled(cancelled);
    dispatch();
    wait();
    end_late_jobs();
  }
}

void MediaWorkers::drop_cancelled(const std::vector<uint64_t>& ids) {
  for (const uint64_t id : ids) {
    std::optional<Running> waiting;
    {
      const std::lock_guard lock(mutex_);
      waiting = queue_.remove([&](const Running& item) { return item.id == id; });
    }
    if (waiting) done(*waiting, Error{Errc::kStopped, "cancelled"});
    for (Slot& slot : slots_)
      if (slot.running && slot.running->id == id) {
        slot.process.reset();
        finish(slot, Error{Errc::kStopped, "cancelled"});
      }
  }
}

void MediaWorkers::dispatch() {
  while (std::ranges::any_of(slots_, [](const Slot& slot) { return !slot.running; })) {
    std::optional<Running> next;
    {
      const std::lock_guard lock(mutex_);
      next = queue_.pop([&](const Running& first) { return leaves_a_worker(first); });
    }
    if (!next) return;
    begin(*slot_for(next->job.owner), std::move(*next));
  }
}

// Whether others find a worker while it runs, however long that is.
bool MediaWorkers::leaves_a_worker(const Running& next) const {
  if (slots_.size() == 1 || next.job.cost <= options_.large_cost) return true;
  const auto may_take = [&](const Slot& slot) {
    return !slot.running || slot.running->job.owner != next.job.owner;
  };
  return std::ranges::count_if(slots_, may_take) > 1;
}

// The owner's own worker first, then one that has seen nothing, then a place for a new one.
MediaWorkers::Slot* MediaWorkers::slot_for(const std::string& owner) {
  const auto rank = [&](const Slot& slot) {
    if (slot.running) return 4;
    if (!slot.process) return 2;
    if (!slot.owner) return 1;
    return *slot.owner == owner ? 0 : 3;
  };
  return &*std::ranges::min_element(slots_, {}, rank);
}

void MediaWorkers::begin(Slot& slot, Running running) {
  if (slot.process && slot.owner && *slot.owner != running.job.owner) slot.process.reset();
  if (!slot.process) {
    ++counts_.started;
    Result<WorkerProcess> started = WorkerProcess::start(options_.command, setup());
    if (!started.ok()) return done(running, started.error());
    slot.process = std::move(started).value();
    slot.busy = {};
  }
  slot.owner = running.job.owner;
  slot.time_limit = std::max(running.job.time_limit, options_.least_time);
  slot.began = Clock::now();
  slot.deadline = slot.began + (slot.process->is_ready() ? slot.time_limit : options_.start_time);
  slot.running = std::move(running);
  MediaJob& job = slot.running->job;
  // One that is gone already says so when it is read.
  slot.process->send(slot.running->id, job.options, job.bytes, job.max_output_bytes);
  job.bytes = {};
}

void MediaWorkers::wait() {
  std::vector<pollfd> items{{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  auto next = Clock::time_point::max();
  for (const Slot& slot : slots_) {
    items.push_back({.fd = slot.process ? slot.process->socket() : -1, .events = POLLIN, .revents = 0});
    if (slot.running) next = std::min(next, slot.deadline);
  }
  int timeout = -1;
  if (next != Clock::time_point::max())
    timeout = static_cast<int>(
        std::max<int64_t>(std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count(), 0));
  ::poll(items.data(), items.size(), timeout);
  eventfd_t ignored;
  ::eventfd_read(wake_.get(), &ignored);
  for (size_t i = 0; i < slots_.size(); ++i)
    if (items[i + 1].revents != 0) look_at(slots_[i]);
}

void MediaWorkers::look_at(Slot& slot) {
  const bool was_ready = slot.process->is_ready();
  std::optional<Result<MediaBytes>> outcome = slot.process->receive();
  if (!was_ready && slot.process->is_ready() && slot.running) slot.deadline = Clock::now() + slot.time_limit;
  if (!outcome) return;
  slot.busy += Clock::now() - slot.began;
  if (slot.process->is_broken()) {
    ++counts_.broken;
    slot.process.reset();
  } else if (slot.busy >= kLife) {
    slot.process.reset();
  }
  if (slot.running) finish(slot, std::move(*outcome));
}

void MediaWorkers::end_late_jobs() {
  const auto now = Clock::now();
  for (Slot& slot : slots_) {
    if (!slot.running || now < slot.deadline) continue;
    ++counts_.timed_out;
    slot.process.reset();
    finish(slot, Error{Errc::kCorrupt, strf("decoding took longer than {} ms", slot.time_limit.count())});
  }
}

void MediaWorkers::finish(Slot& slot, Result<MediaBytes> result) {
  const Running running = std::move(*slot.running);
  slot.running.reset();
  done(running, std::move(result));
}

void MediaWorkers::done(const Running& running, Result<MediaBytes> result) {
  {
    const std::lock_guard lock(mutex_);
    queue_.release(running.job.owner, running.bytes);
  }
  running.job.done(std::move(result));
}

void MediaWorkers::stop_all() {
  const Error stopped{Errc::kStopped, "the server is shutting down"};
  for (Slot& slot : slots_) {
    slot.process.reset();
    if (slot.running) finish(slot, stopped);
  }
  for (;;) {
    std::optional<Running> waiting;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      waiting = queue_.pop();
    }
    if (!waiting) return;
    done(*waiting, stopped);
  }
}

}  // namespace sparrow
