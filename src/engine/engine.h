// SPDX-License-Identifier: Apache-2.0
// Engine: many requests, one cache, one thread that owns the device. Clients submit from any thread and read
// from their TokenStream; the engine's thread never waits for them. A request's output depends on the request
// alone: not on who else is there, on how its prompt was cut, or on what was cached.
#pragma once

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/result.h"
#include "engine/engine_types.h"
#include "engine/request.h"
#include "engine/token_stream.h"

namespace sparrow {

class EngineCore;
class ModelRunner;
struct ModelConfig;
struct Weights;

class Engine {
 public:
  // Config and weights are borrowed. Fails when the cache does not fit into memory, or an option makes no
  // sense.
  static Result<std::unique_ptr<Engine>> create(const ModelConfig& config, const Weights& weights,
                                                const EngineOptions& options);
  // On a runner that is there already.
  static Result<std::unique_ptr<Engine>> create(const ModelConfig& config,
                                                std::unique_ptr<ModelRunner> runner,
                                                const EngineOptions& options);
  ~Engine();  // stop()
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Any thread; waits for nothing. Errors: kInvalidArgument names the field and the value; kBusy: the queue
  // is full, try again later; kStopped: the engine drains, has stopped or has failed.
  Result<std::unique_ptr<TokenStream>> submit(Request request);

  // Any thread: as of the last step.
  EngineStats stats() const;
  // Any thread: who waits for what, first of the queue first. Answered between two steps: waits for that.
  std::vector<WaitingSequence> waiting() const;
  const RequestLimits& limits() const { return limits_; }
  const EngineInfo& info() const { return info_; }

  // Any thread, whatever the engine's own is stuck in: every stream ends with that error, and new requests
  // are refused with it. The engine does the same itself when its runner fails.
  void fail(const Error& failure);
  std::optional<Error> failure() const;

  // Refuses new requests and returns when the accepted ones have ended. Their readers must go on reading.
  void drain();
  // Refuses new requests, ends the accepted ones with FinishReason::kCancelled, and joins the thread. One
  // thread at a time.
  void stop();

 private:
  struct Inbox;

  Engine(std::unique_ptr<EngineCore> core, const EngineOptions& options);
  void loop();
  bool take_inbox(bool can_run);

  const EngineOptions options_;
  const RequestLimits limits_;
  EngineInfo info_;
  std::unique_ptr<EngineCore> core_;  // engine thread only
  std::shared_ptr<Inbox> inbox_;      // streams may outlive the engine
  std::thread thread_;
};

}  // namespace sparrow
