// SPDX-License-Identifier: Apache-2.0
// KvEventPublisher: tells routers what the prefix cache holds, in vLLM's format: a ZeroMQ PUB socket for each
// data-parallel group, and one that answers who asks for what it missed. The engine never waits for it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "server/events/kv_event_options.h"

namespace sparrow {

class Metrics;

class KvEventPublisher {
 public:
  static Result<std::unique_ptr<KvEventPublisher>> start(const KvEventOptions& options, int groups);
  ~KvEventPublisher();
  KvEventPublisher(const KvEventPublisher&) = delete;
  KvEventPublisher& operator=(const KvEventPublisher&) = delete;

  // For EngineOptions. May be called as long as the publisher lives.
  CacheEventSink sink();

  // Which must not be asked after the publisher has gone.
  void add_metrics(Metrics& metrics, const std::string& model_name) const;
  // Where it is found, a line for each group.
  std::vector<std::string> endpoints() const;

 private:
  struct Core;
  explicit KvEventPublisher(std::unique_ptr<Core> core);
  std::unique_ptr<Core> core_;
};

}  // namespace sparrow
