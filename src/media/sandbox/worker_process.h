// SPDX-License-Identifier: Apache-2.0
// WorkerProcess: the server's side of one worker. Nothing that comes from the process is trusted: messages
// have one size, numbers are checked once in a copy of our own, results are copied before anybody reads them.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/files/fd.h"
#include "base/result.h"
#include "media/media_bytes.h"
#include "media/sandbox/wire.h"

namespace sparrow {

// What is started as a worker: a program of which `run_media_worker` is the main function.
struct WorkerCommand {
  std::string program = "/proc/self/exe";
  std::vector<std::string> arguments;
};

class WorkerProcess {
 public:
  // A new process. It has not said yet that it is ready, but takes a job already.
  static Result<WorkerProcess> start(const WorkerCommand& command, const WorkerSetup& setup);

  WorkerProcess(WorkerProcess&& other) noexcept;
  WorkerProcess& operator=(WorkerProcess&& other) noexcept;
  ~WorkerProcess();  // kills and buries it

  int socket() const { return socket_.get(); }
  pid_t pid() const { return pid_; }

  // The next job; one at a time. The caller has checked the sizes against the setup. False: the process is
  // gone.
  bool send(uint64_t id, std::span<const std::byte> options, std::span<const std::byte> input,
            size_t max_output_bytes);

  // What the process has said, when its socket can be read. nullopt: nothing yet that ends the job.
  std::optional<Result<MediaBytes>> receive();
  bool is_ready() const { return ready_; }
  // The last job ended with an error after which the process must go: it died, lied or could not be locked
  // up.
  bool is_broken() const { return broken_; }

 private:
  WorkerProcess() = default;
  Result<MediaBytes> take_reply(const ReplyMessage& reply);
  Error give_up(std::string why, Errc code = Errc::kCorrupt);
  // The process is gone: what it died of.
  std::string cause_of_death();
  void bury();
  void forget_job();

  WorkerSetup setup_;
  pid_t pid_ = -1;
  Fd socket_, memory_file_;
  std::byte* memory_ = nullptr;
  JobMessage job_;
  bool ready_ = false, broken_ = false;
};

}  // namespace sparrow
