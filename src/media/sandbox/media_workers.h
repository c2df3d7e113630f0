// SPDX-License-Identifier: Apache-2.0
// MediaWorkers: decoding of what strangers send, in processes that can do nothing else. A job that crashes
// its worker, hangs, or answers nonsense gets an error; no other job notices. A worker never sees bytes of
// two owners: one that has been taken over by a picture has nobody else's to look at.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/files/fd.h"
#include "base/result.h"
#include "media/fair_queue.h"
#include "media/sandbox/worker_process.h"

namespace sparrow {

struct MediaWorkersOptions {
  WorkerCommand command;
  int workers = 2;
  size_t max_input_bytes = size_t{64} << 20;   // of one job, options included
  size_t max_output_bytes = size_t{64} << 20;  // of one job
  size_t memory_bytes = size_t{1} << 30;       // of one worker, beside these
  std::chrono::milliseconds start_time{30'000};
  std::chrono::milliseconds least_time{0};  // that any job gets, whatever its own limit
  // Jobs that cost more leave a worker to others: an owner may have them on all but one.
  uint64_t large_cost = ~uint64_t{0};
  // Waiting and running.
  QueueLimits all{.items = 4096, .bytes = size_t{1} << 30};
  QueueLimits of_owner{.items = 1024, .bytes = size_t{256} << 20};
};

struct MediaJob {
  std::string owner;  // whose bytes they are: the key
  MediaBytes options, bytes;
  size_t max_output_bytes = 0;
  std::chrono::milliseconds time_limit{10'000};
  uint64_t cost = 1;  // against the jobs of other owners; pixels, say
  // Called once for each job that was accepted, on the workers' thread. Must not wait, nor throw.
  std::function<void(Result<MediaBytes>)> done;
};

// Since the start.
struct MediaWorkerCounts {
  std::atomic<int64_t> accepted{0};   // jobs
  std::atomic<int64_t> started{0};    // processes
  std::atomic<int64_t> broken{0};     // of them: crashed or lied
  std::atomic<int64_t> timed_out{0};  // killed at a job's deadline
};

class MediaWorkers {
 public:
  // Error: no worker can be started or locked up here.
  static Result<std::unique_ptr<MediaWorkers>> start(const MediaWorkersOptions& options);
  // Kills what runs. Jobs that are not done get an error of kind kStopped.
  ~MediaWorkers();
  MediaWorkers(const MediaWorkers&) = delete;
  MediaWorkers& operator=(const MediaWorkers&) = delete;

  // Any thread. The job's number, for cancel(). kBusy: the queue is full, or the owner's part of it.
  Result<uint64_t> submit(MediaJob job);
  // Any thread. Nobody wants it any more: it ends soon, with an error of kind kStopped where it was not done.
  void cancel(uint64_t id);

  int num_waiting() const;
  const MediaWorkerCounts& counts() const { return counts_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Running {
    uint64_t id;
    size_t bytes;  // that count in the queue until it is done
    MediaJob job;
  };
  struct Slot {
    std::optional<WorkerProcess> process;
    std::optional<std::string> owner;  // whose bytes the process has seen; nullopt: nobody's
    Clock::duration busy{};
    std::optional<Running> running;
    std::chrono::milliseconds time_limit{};
    Clock::time_point began, deadline;
  };

  explicit MediaWorkers(const MediaWorkersOptions& options);
  WorkerSetup setup() const;
  void run(std::promise<Status> started);
  Status prove();
  void loop();
  void drop_cancelled(const std::vector<uint64_t>& ids);
  void dispatch();
  bool leaves_a_worker(const Running& next) const;
  Slot* slot_for(const std::string& owner);
  void begin(Slot& slot, Running running);
  void wait();
  void look_at(Slot& slot);
  void end_late_jobs();
  void finish(Slot& slot, Result<MediaBytes> result);
  void done(const Running& running, Result<MediaBytes> result);
  void wake();
  void stop_all();

  const MediaWorkersOptions options_;
  MediaWorkerCounts counts_;
  Fd wake_;
  std::vector<Slot> slots_;  // of the thread alone
  mutable std::mutex mutex_;
  FairQueue<Running> queue_;
  std::vector<uint64_t> cancelled_;
  uint64_t last_id_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace sparrow
