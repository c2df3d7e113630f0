// SPDX-License-Identifier: Apache-2.0
// Scheduler: decides which tokens run next. Host only, engine thread only, deterministic: it sees ids, blocks
// and the time it is told, never text, logits or device memory.
//
//   add(), finish(), set_paused()  at any time
//   plan_step()                    what to run; blocks are there, copies to make first are listed
//   plan_ahead()                   the step after it, while its ids are not known yet
//   commit()                       the ids that were drawn
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "engine/schedule/sequence.h"
#include "engine/schedule/step_plan.h"
#include "engine/schedule/wait_reason.h"
#include "kv/block_pool.h"
#include "kv/prefix_cache.h"

namespace sparrow {

struct SchedulerLimits {
  int max_step_tokens = 512;     // in one step
  int max_step_sequences = 256;  // running at the same time
  int64_t max_model_tokens = 0;
  bool prefix_caching = true;
  int min_chunk = kBlockTokens;  // of a prompt, when several share a step
  // A step of priority counts like having arrived this much later, and steps beyond the most count no more:
  // so nobody is overtaken by those who come later than that, which with these is ten minutes.
  std::chrono::milliseconds priority_step{60'000};
  int max_priority = 10;
};

Status validate(const SchedulerLimits& limits);

struct SchedulerStats {
  int running = 0, waiting = 0;
  std::array<int, kNumWaitReasons> waiting_by_reason{};
  int blocks_total = 0, blocks_in_use = 0, blocks_cached = 0, blocks_free = 0;
  int64_t prefix_tokens_queried = 0, prefix_tokens_hit = 0;
  int64_t preemptions = 0;
  int64_t tokens_planned = 0;
  int64_t steps = 0;
};

class Scheduler {
 public:
  // The limits are valid; the pool is borrowed and must outlive the scheduler.
  Scheduler(BlockPool& pool, const SchedulerLimits& limits);

  // Queues a prompt; its choices get the returned id and those after it, once they exist. Refuses, with the
  // numbers, what could never run.
  Result<SequenceId> add(SequenceSpec spec, SchedulerTime now);

  // Ends a sequence in whatever state: done, cancelled or failed. Its blocks are given back at once, or by
  // the commit() of the last planned step that it is in. Before its first token this ends all choices of a
  // prompt. False: there is no such sequence.
  bool finish(SequenceId id);

  void set_paused(SequenceId id, bool paused);

  // Of the steps to come, within the limits. All decodes run and prompts get on, whatever it is.
  void set_step_tokens(int num_tokens) { step_tokens_ = num_tokens; }

  // The next step; valid until commit(), which must follow. No slices: nothing can run now.
  const StepPlan& plan_step(SchedulerTime now);

  // The step after the one that is planned, valid until that one's commit(): every sequence that does not
  // reach its length there goes on with the id that is being drawn for it, in the same order. nullptr: no
  // such step, because others want to run as well, a prompt is not done or a block is missing.
  const StepPlan* plan_ahead(SchedulerTime now);

  // The older planned step has run. `sampled`: StepSlice::num_draws() ids for each slice, in order; those of
  // a sequence that was finished meanwhile are passed over. The caller ends what has reached its end.
  void commit(std::span<const int32_t> sampled);

  const Sequence* find(SequenceId id) const;                     // nullptr: there is none
  std::optional<WaitingInfo> waiting_info(SequenceId id) const;  // nullopt: it does not wait
  SchedulerStats stats() const;
  bool idle() const { return sequences_.empty(); }

 private:
  // Best first in both lists: by Sequence::order, then by id.
  struct Waiting {
    int64_t order;
    SequenceId id;
    Sequence* sequence;
    bool blocked;  // paused, or waits for another's prefix
  };
  enum class Start : uint8_t { kStarted, kFollows, kNoBlocks };

  void drop_expired(SchedulerTime now);
  void plan_decodes();
  bool has_slot(Sequence& sequence);
  bool preempt_another(size_t& current);
  bool preempt_paused();
  void preempt(size_t index);
  void admit();
  Start start(Sequence& sequence);
  bool follow(Sequence& sequence);
  void take_blocks(Sequence& sequence, int64_t num_blocks);
  void plan_prefills();
  void add_slice(Sequence& sequence, int64_t num_tokens);
  static void score_rows(StepSlice& slice);
  WaitReason reason_of(const Sequence& waiting) const;

  bool others_want_to_run(SchedulerTime now) const;
  void publish(Sequence& sequence);
  void fork(Sequence& sequence, std::span<const int32_t> ids);
  void remove(Sequence& sequence);
  void wait(Sequence& sequence);
  void run(Sequence& sequence);
  void release_followers(Sequence& leader, bool all);
  size_t running_index(const Sequence& sequence) const;
  size_t waiting_index(const Sequence& sequence) const;
  PrefixContent content(const Sequence& sequence) const;
  int64_t reserved_blocks() const;

  BlockPool& pool_;
  const SchedulerLimits limits_;
  int step_tokens_;
  PrefixCache cache_;
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::vector<Sequence*> running_;
  std::vector<Waiting> waiting_;
  int num_choices_running_ = 0;  // of the running sequences, those to come counted
  int num_paused_ = 0;           // of the running sequences
  SequenceId next_id_ = 1;
  SchedulerTime earliest_deadline_ = SchedulerTime::max();  // of the queue, or earlier

  int num_planned_ = 0;  // steps that are not committed: at most two
  uint64_t step_ = 0;
  int64_t num_growing_ = 0;  // running sequences that may yet need more blocks
  StepPlan plan_, ahead_;
  std::vector<Sequence*> prefills_, passed_over_;
  PrefixHit hit_;
  SchedulerStats totals_;
};

}  // namespace sparrow
