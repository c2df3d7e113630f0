// SPDX-License-Identifier: Apache-2.0
// EngineCore: requests -> steps -> events: what the engine's thread does, and tests drive step by step.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/threads/thread_pool.h"
#include "engine/model_runner.h"
#include "engine/request.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/step_budget.h"
#include "engine/token_stream.h"

namespace sparrow {

using RequestId = uint64_t;

class EngineCore {
 public:
  using Created = Result<std::unique_ptr<EngineCore>>;
  // Config and weights are borrowed. The second is for a runner that is there already.
  static Created create(const ModelConfig& config, const Weights& weights, const EngineOptions& options);
  static Created create(const ModelConfig& config, std::unique_ptr<ModelRunner> runner,
                        const EngineOptions& options);

  // The request is valid. What the scheduler still refuses ends with an error event.
  void add(RequestId id, Request request, std::shared_ptr<TokenChannel> channel, SchedulerTime now);
  // The request's channel has something to say: it was cancelled, or has room again. May come after its end.
  void on_signal(RequestId id);
  void cancel_all();
  const std::optional<Error>& failure() const { return failure_; }

  // Plans, runs and commits one step; where it can, it starts the next one first, which the next call then
  // finds running. False: nothing could run, or the runner has failed and all requests ended with that.
  bool step(SchedulerTime now);
  // Pushes the events of what was called since. Apart from step(), so that statistics are made known first.
  void deliver();

  // Requests that have begun, or ended before they could, since the last call.
  std::vector<RequestId> take_left_queue() { return std::exchange(left_queue_, {}); }
  bool idle() const { return requests_.empty() && flight_.num_tokens == 0; }
  EngineStats stats() const;
  std::vector<WaitingSequence> waiting() const;  // by queue position
  ModelRunner& runner() { return *runner_; }
  const BlockPool& pool() const { return scheduler_.pool(); }
  const RequestLimits& request_limits() const { return request_limits_; }

 private:
  struct ActiveRequest {
    RequestId id;
    Request request;  // without its prompts, which the sequences hold
    std::shared_ptr<TokenChannel> channel;
    std::vector<int32_t> end_ids;       // that end an output: stop ids, then the model's
    std::vector<SequenceId> sequences;  // [output]; of ended ones too
    int outputs_left = 0;
    bool started = false, paused = false;
    SchedulerTime arrived;
    std::optional<TokenEvent::Waited> waited;  // once it has started, until it is told
  };

  // One choice of a prompt, until it ends.
  struct Output {
    ActiveRequest* request;
    int index, choice;                            // in the request, of its prompt
    TokenCounts counts;                           // where penalties need them
    std::unique_ptr<TokenConstraint> constraint;  // null: none
    std::vector<TokenLogprobs> prompt_logprobs;   // until they are sent; first choice only
    std::optional<int64_t> bad_prompt_row;        // one whose logits were no numbers
    int64_t cached_tokens = 0;
  };

  // What a step drew for one output.
  struct Drawn {
    SequenceId sequence;
    SequenceId prompt_sequence;  // that ran: the first of its choices
    int64_t position;            // in the output
    bool waits = false;          // for its id
    TokenEvent event;
  };

  // A step from its launch until its ids are there.
  struct Flight {
    std::vector<DrawRequest> draws;
    std::vector<Drawn> drawn;
    int num_tokens = 0, num_sequences = 0, group_tokens = 0;  // 0: there is none; the last: most of a group
  };

  struct Outgoing {
    RequestId request;
    std::shared_ptr<TokenChannel> channel;
    TokenEvent event;
  };

  EngineCore(const ModelConfig& config, const EngineOptions& options, std::unique_ptr<ModelRunner> runner);
  void add_prompt(ActiveRequest& request, size_t prompt, SequenceSpec spec, SchedulerTime now);
  void expire(const StepPlan& plan);
  void encode_media();
  bool runner_failed();  // then everything has ended
  void run_step(const StepPlan& plan, Flight& flight);
  void start_draws(const StepPlan& plan, Flight& flight);
  // Runs the step after `flight`, if that is known without its ids; the plan, if its draws need these.
  const StepPlan* launch_ahead(const Flight& flight, SchedulerTime now);
  void collect(Flight& flight, std::vector<Draw> draws);
  void start_requests(const StepPlan& plan);
  TokenEvent::Waited waited_until_now(const ActiveRequest& request, WaitReason reason) const;
  void score_prompts(const StepPlan& plan);
  void ask_for_draws(const StepPlan& plan, Flight& flight);
  void ask_for_draw(const StepSlice& slice, int choice, int64_t position, int64_t row, Flight& flight);
  // The event of a draw that needs no logits: one that failed before, or of which nothing is wanted.
  std::optional<TokenEvent> event_without_draw(const Output& output) const;
  void set_mask(SampleRow& row, const NextIds& next, const ActiveRequest& active, bool is_early) const;
  void finish_draw(Drawn& drawn, Draw draw);
  void send(ActiveRequest& request, TokenEvent event);
  void send_drawn(Flight& flight);
  void end(SequenceId sequence, TokenEvent event);  // and the request with its last output
  void end_all(ActiveRequest& request, FinishReason reason, const std::string& error = {});
  void leave_queue(const ActiveRequest& request);
  void set_paused(ActiveRequest& request, bool paused);
  void count_step(const Flight& flight, double seconds);

  std::unique_ptr<ModelRunner> runner_;
  const RequestLimits request_limits_;
  const bool run_ahead_, bound_steps_;
  Scheduler scheduler_;
  FeatureStore features_;
  StepBudget budget_;
  int step_tokens_ = 0, num_queued_ = 0;  // the first: what each group was given in the running step
  EngineStats stats_;
  std::optional<Error> failure_;
  std::vector<RequestId> left_queue_;
  std::unordered_map<RequestId, std::unique_ptr<ActiveRequest>> requests_;
  std::unordered_map<SequenceId, Output> outputs_;
  Flight flight_, ahead_;                           // the step that runs, and the one behind it
  std::chrono::steady_clock::time_point launched_;  // flight_, or the step before it ended
  SchedulerTime now_;                               // of the last call that told it
  Batch batch_;                                     // one step's lists, from here on kept for their memory
  std::vector<int32_t> sampled_;
  std::vector<PromptRow> prompt_rows_;
  std::unique_ptr<ThreadPool> mask_threads_;  // once there are masks to make
  std::vector<Outgoing> outgoing_;
};

}  // namespace sparrow
