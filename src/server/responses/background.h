// SPDX-License-Identifier: Apache-2.0
// BackgroundRuns: answers that are made without their client, who comes back for them. A thread of its own
// takes the engine's events.
#pragma once

#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <set>

#include "server/api/pump.h"
#include "server/service_metrics.h"

namespace sparrow {

class BackgroundRuns {
 public:
  // Must outlive this.
  explicit BackgroundRuns(ServiceMetrics& counts);
  ~BackgroundRuns();  // what still runs is given up

  // Takes an answer over. Returns what it is now, for its client. Error: there is no room to store it, and it
  // is given up.
  Result<std::string> start(Pump pump, Pump::Clock::time_point received_at);

 private:
  struct Run;
  struct Door;

  void step(const std::shared_ptr<Run>& run);

  ServiceMetrics& counts_;
  boost::asio::thread_pool work_{1};
  // The way in for those who may call after the end: the engine's thread.
  const std::shared_ptr<Door> door_;
  std::mutex mutex_;
  std::set<std::shared_ptr<Run>> runs_;
};

}  // namespace sparrow
