// SPDX-License-Identifier: Apache-2.0
// FailureWatch: a thread that waits for the instance to fail. When it does, it says so to whom it was told,
// and ends the process a moment later, whatever the other threads are stuck in: a collective may never
// return.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "base/result.h"
#include "comm/control_link.h"

namespace sparrow::cli {

class FailureWatch {
 public:
  using Tell = std::function<void(const Error& failure)>;

  // Until on_failure() is called, a failure is printed.
  explicit FailureWatch(const ControlLink& link);
  ~FailureWatch();  // what happens from now on is the end
  FailureWatch(const FailureWatch&) = delete;
  FailureWatch& operator=(const FailureWatch&) = delete;

  // Called once, from the watch's thread; the process lives for `grace` then. Null: nobody is told.
  void on_failure(Tell tell, std::chrono::milliseconds grace);
  // From now on nobody is told. True: somebody was.
  bool silence(std::chrono::milliseconds grace);

 private:
  void run();

  const ControlLink& link_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Tell tell_;
  std::chrono::milliseconds grace_;
  bool ending_ = false, told_ = false;
  std::thread thread_;
};

}  // namespace sparrow::cli
