// SPDX-License-Identifier: Apache-2.0
// One line for each request: when, what, for whom, how long. Never bodies, queries or keys.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "server/http/http.h"

namespace sparrow {

enum class LogFormat { kHuman, kJson };

// The line with its line end. Whatever a peer sent, it stays one line.
std::string access_line(const AccessRecord& record, LogFormat format,
                        std::chrono::system_clock::time_point now);

// Written by a thread of its own: if nobody reads the log any more, the server must not stop. What does not
// fit then is lost, and a line says how much.
class AccessLog {
 public:
  // The descriptor must stay open as long as the process, or until its reader is gone.
  AccessLog(int fd, LogFormat format);
  ~AccessLog();  // returns when all is written, or nobody has read for a second
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;

  // Any thread; waits for nobody.
  void write(const AccessRecord& record) const;
  void write_line(std::string_view line) const;  // with its line end

 private:
  struct Queue;
  static void run(Queue& queue, int fd, LogFormat format);

  const LogFormat format_;
  const std::shared_ptr<Queue> queue_;  // outlives this if the thread is stuck
  std::thread thread_;
};

}  // namespace sparrow
