// SPDX-License-Identifier: Apache-2.0
// Scheduler: decides which tokens run next. Host only, engine thread only, deterministic: it sees ids, blocks
// and the time it is told, never text, logits or device memory.
//
//   add(), finish(), set_paused()  at any time
//   plan_step()                    what to run; blocks are there, copies to make first are listed
//   plan_ahead()                   the step after it, while its ids are not known yet
//   commit()                       the ids that were drawn
//
// Data-parallel groups have a cache each, and one queue: a sequence runs in the group that it was placed in
// when it started. A step is planned for all groups together.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "engine/schedule/scheduler_group.h"
#include "engine/schedule/scheduler_types.h"
#include "engine/schedule/sequence.h"
#include "engine/schedule/step_plan.h"
#include "engine/schedule/wait_reason.h"
#include "kv/block_pool.h"
#include "kv/cache_event.h"

namespace sparrow {

class Scheduler {
 public:
  // The limits are valid. Each group has so many blocks, and group g those from g * blocks_per_group on.
  Scheduler(int blocks_per_group, const SchedulerLimits& limits,
            std::optional<uint64_t> block_order_seed = std::nullopt);

  // Queues a prompt; its choices get the returned id and those after it, once they exist. Refuses, with the
  // numbers, what could never run.
  Result<SequenceId> add(SequenceSpec spec, SchedulerTime now);

  // Ends a sequence in whatever state: done, cancelled or failed. Its blocks are given back at once, or by
  // the commit() of the last planned step that it is in. Before its first token this ends all choices of a
  // prompt. False: there is no such sequence.
  bool finish(SequenceId id);

  void set_paused(SequenceId id, bool paused);

  // Of the steps to come, for each group, within the limits. All decodes run and prompts get on, whatever it
  // is.
  void set_step_tokens(int num_tokens) { step_tokens_ = num_tokens; }

  // Every commit() tells from now on what became of the prefix caches' blocks; to begin with, that they hold
  // nothing. Called once, before anything runs.
  void tell_cache_events(CacheEventSink sink);

  // The next step; valid until commit(), which must follow. No slices: nothing can run now.
  const StepPlan& plan_step(SchedulerTime now);

  // The step after the one that is planned, valid until that one's commit(): every sequence that does not
  // reach its length there goes on with the id that is being drawn for it, in the same order. nullptr: no
  // such step, because others want to run as well, a prompt is not done or a block is missing.
  const StepPlan* plan_ahead(SchedulerTime now);

  // The older planned step has run. `sampled`: StepSlice::num_draws() ids for each slice, in order; those of
  // a sequence that was finished meanwhile are passed over. The caller ends what has reached its end.
  void commit(std::span<const int32_t> sampled);

  // Ids that come after the last one without a draw, between two steps. They run together with it in the next
  // step that it has a part in. False: it cannot take them now, and nothing has changed.
  bool append(SequenceId id, std::span<const int32_t> ids);

  // Running sequences that cannot get on for ever without features, best first; they may be told what is
  // ready. Until the next call.
  std::span<Sequence* const> need_features();

  const Sequence* find(SequenceId id) const;                     // nullptr: there is none
  std::optional<WaitingInfo> waiting_info(SequenceId id) const;  // nullopt: it does not wait
  SchedulerStats stats() const;
  int num_groups() const { return limits_.groups; }
  const BlockPool& pool(int group = 0) const { return groups_[group].pool; }
  const PrefixCache& cache(int group = 0) const { return groups_[group].cache; }
  bool idle() const { return sequences_.empty(); }

 private:
  using Group = SchedulerGroup;
  struct Waiting {
    int64_t order;
    SequenceId id;
    Sequence* sequence;
    bool blocked;  // paused, or waits for another's prefix
  };
  enum class Start : uint8_t { kStarted, kFollows, kNoBlocks };

  // scheduler_plan.cc
  void drop_expired(SchedulerTime now);
  void plan_decodes(Group& group);
  bool has_slot(Sequence& sequence);
  bool preempt_another(Group& group, size_t& current);
  bool preempt_paused(Group& group);
  void preempt(Group& group, size_t index);
  void plan_prefills(Group& group);
  void add_slice(Group& group, Sequence& sequence, int64_t num_tokens);
  static void score_rows(StepSlice& slice);
  bool others_want_to_run(SchedulerTime now) const;

  // scheduler_admit.cc
  void admit();
  Start start(Sequence& sequence);
  bool lacks_blocks_as_before(Sequence& sequence) const;
  void look_up(Group& group, const Sequence& sequence) const;
  void find_leader(Group& group, const Sequence& sequence) const;
  void rank_candidates();
  Group* group_with_room(Sequence& sequence, int64_t num_blocks);
  void take_blocks(Group& group, Sequence& sequence, int64_t num_blocks);

  // scheduler.cc
  void publish(Sequence& sequence);
  void send_cache_events();
  void fork(Sequence& sequence, std::span<const int32_t> ids);
  void remove(Sequence& sequence);
  void wait(Sequence& sequence);
  void release_followers(Sequence& leader, bool all);
  Group& group_of(const Sequence& sequence) { return groups_[sequence.group]; }
  size_t waiting_index(const Sequence& sequence) const;
  static PrefixContent content(const Sequence& sequence);
  int free_places() const;
  static WaitReason reason_of(const Sequence& waiting, int free_places);

  const SchedulerLimits limits_;
  int step_tokens_;
  std::deque<Group> groups_;  // which cannot be moved
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::vector<Waiting> waiting_;  // best first
  SequenceId next_id_ = 1;
  SchedulerTime earliest_deadline_ = SchedulerTime::max();  // of the queue, or earlier

  CacheEventSink cache_event_sink_;  // none: nobody wants to know

  int num_planned_ = 0;  // steps that are not committed: at most two
  uint64_t step_ = 0;
  StepPlan plan_, ahead_;
  int64_t num_tokens_planned_ = 0, num_steps_ = 0;
  std::vector<Sequence*> passed_over_, need_features_;
  std::vector<Group*> candidates_;  // that have a place for the sequence that is being placed, best first
};

}  // namespace sparrow
