// SPDX-License-Identifier: Apache-2.0
// The life of a sequence: queued, committed, forked, ended. scheduler_admit.cc decides where it starts,
// scheduler_plan.cc what runs.
#include "engine/schedule/scheduler.h"

#include <algorithm>
#include <utility>

namespace sparrow {
Status validate(const SchedulerLimits& limits) {
  const auto positive = [](const char* name, int64_t value) -> Status {
    if (value < 1) return Error{Errc::kInvalidArgument, strf("{} must be at least 1, got {}", name, value)};
    return Ok{};
  };
  SPARROW_TRY(positive("groups", limits.groups));
  SPARROW_TRY(positive("max_step_sequences", limits.max_step_sequences));
  SPARROW_TRY(positive("max_model_tokens", limits.max_model_tokens));
  SPARROW_TRY(positive("min_chunk", limits.min_chunk));
  SPARROW_TRY(positive("max_priority", limits.max_priority));
  // Otherwise running sequences would have to take turns.
  if (limits.max_step_tokens < limits.max_step_sequences)
    return Error{Errc::kInvalidArgument,
                 strf("max_step_tokens must be at least max_step_sequences = {}, got {}",
                      limits.max_step_sequences, limits.max_step_tokens)};
  constexpr std::chrono::milliseconds kDay = std::chrono::hours(24);  // times any priority fits 64 bits
  if (limits.priority_step < std::chrono::milliseconds(0) || limits.priority_step > kDay)
    return Error{Errc::kInvalidArgument, strf("priority_step must be in [0, {}] ms, got {}", kDay.count(),
                                              limits.priority_step.count())};
  return Ok{};
}

GroupStats& GroupStats::operator+=(const GroupStats& other) {
  running += other.running;
  blocks_total += other.blocks_total;
  blocks_in_use += other.blocks_in_use;
  blocks_cached += other.blocks_cached;
  blocks_free += other.blocks_free;
  prefix_tokens_queried += other.prefix_tokens_queried;
  prefix_tokens_hit += other.prefix_tokens_hit;
  preemptions += other.preemptions;
  return *this;
}

Scheduler::Scheduler(int blocks_per_group, const SchedulerLimits& limits,
                     std::optional<uint64_t> block_order_seed)
    : limits_(limits), step_tokens_(limits.max_step_tokens) {
  SPARROW_CHECK(validate(limits).ok());
  for (int g = 0; g < limits.groups; ++g) groups_.emplace_back(g, blocks_per_group, block_order_seed);
}

Result<SequenceId> Scheduler::add(SequenceSpec spec, SchedulerTime now) {
  const int64_t prompt_tokens = static_cast<int64_t>(spec.prompt.size());
  const int64_t total_tokens = std::max(spec.max_total_tokens, prompt_tokens);
  if (prompt_tokens == 0) return Error{Errc::kInvalidArgument, "prompt must have at least one token"};
  if (spec.num_choices < 1 || spec.num_choices > limits_.max_step_sequences)
    return Error{Errc::kInvalidArgument,
                 strf("n must be in [1, {}], the sequences that can run at once, got {}",
                      limits_.max_step_sequences, spec.num_choices)};
  if (total_tokens > limits_.max_model_tokens)
    return Error{Errc::kInvalidArgument,
                 strf("prompt of {} tokens and output of up to {} are {} tokens, and the limit is {}",
                      prompt_tokens, total_tokens - prompt_tokens, total_tokens, limits_.max_model_tokens)};
  auto sequence = std::make_unique<Sequence>(Sequence{.ids = std::move(spec.prompt),
                                                      .blocks = BlockTable(groups_.front().pool),
                                                      .id = next_id_,
                                                      .owner = spec.owner,
                                                      .num_choices = spec.num_choices,
                                                      .num_prompt_tokens = prompt_tokens,
                                                      .max_total_tokens = total_tokens,
                                                      .score_prompt = spec.score_prompt,
                                                      .queue_deadline = spec.queue_deadline,
                                                      .salt = std::move(spec.salt),
                                                      .media = std::move(spec.media.spans),
                                                      .segments = std::move(spec.media.segments)});
  const int64_t blocks = blocks_for_tokens(sequence->max_computed_tokens());
  if (blocks > pool().num_blocks())
    return Error{Errc::kInvalidArgument,
                 strf("prompt of {} tokens and output of up to {} need {} blocks of {}, which has {}",
                      prompt_tokens, total_tokens - prompt_tokens, blocks,
                      groups_.size() > 1 ? "a group's cache" : "the cache", pool().num_blocks())};
  next_id_ += spec.num_choices;
  sequence->order =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() +
      std::clamp(spec.priority, -limits_.max_priority, limits_.max_priority) * limits_.priority_step.count();
  if (limits_.prefix_caching)
    groups_.front().cache.extend_digests(content(*sequence), prompt_tokens / kBlockTokens, sequence->digests);
  earliest_deadline_ = std::min(earliest_deadline_, sequence->queue_deadline);
  wait(*sequence);
  const SequenceId id = sequence->id;
  sequences_.emplace(id, std::move(sequence));
  return id;
}

bool Scheduler::finish(SequenceId id) {
  const auto at = sequences_.find(id);
  if (at == sequences_.end() || at->second->state == SequenceState::kFinished) return false;
  Sequence& sequence = *at->second;
  if (sequence.num_planned > 0)
    sequence.state = SequenceState::kFinished;
  else
    remove(sequence);
  return true;
}

void Scheduler::set_paused(SequenceId id, bool paused) {
  const auto at = sequences_.find(id);
  if (at == sequences_.end() || at->second->paused == paused) return;
  Sequence& sequence = *at->second;
  sequence.paused = paused;
  if (sequence.state == SequenceState::kWaiting) {
    waiting_[waiting_index(sequence)].blocked = paused || sequence.waits_for != 0;
    return;
  }
  group_of(sequence).num_paused += paused ? 1 : -1;
  release_followers(sequence, /*all=*/true);  // it may stay paused for long
}

void Scheduler::commit(std::span<const int32_t> sampled) {
  SPARROW_CHECK_LT(0, num_planned_);
  size_t next = 0;
  for (const StepSlice& slice : plan_.slices) {
    Sequence& sequence = *slice.sequence;
    SPARROW_CHECK_LE(next + slice.num_draws(), sampled.size());
    const std::span<const int32_t> ids = sampled.subspan(next, slice.num_draws());
    next += ids.size();
    --sequence.num_planned;
    if (sequence.state == SequenceState::kFinished) {
      if (sequence.num_planned == 0) remove(sequence);
      continue;
    }
    sequence.num_computed = slice.first + slice.num_tokens;
    publish(sequence);
    if (ids.empty()) continue;
    if (sequence.num_choices > 1) fork(sequence, ids.subspan(1));
    sequence.ids.push_back(ids[0]);
  }
  SPARROW_CHECK_EQ(next, sampled.size());
  std::swap(plan_, ahead_);
  --num_planned_;
  for (const Group& group : groups_) {
    const BlockPool& pool = group.pool;
    SPARROW_CHECK_EQ(pool.num_in_use() + pool.num_cached() + pool.num_free(), pool.num_blocks());
  }
  if (cache_event_sink_) send_cache_events();
}

bool Scheduler::append(SequenceId id, std::span<const int32_t> ids) {
  const auto at = sequences_.find(id);
  if (at == sequences_.end()) return false;
  Sequence& sequence = *at->second;
  // One that runs ahead goes on from a draw; one that waits has no blocks.
  if (sequence.state != SequenceState::kRunning || sequence.num_planned > 0) return false;
  const int64_t position = sequence.num_computed, end = sequence.num_tokens() + std::ssize(ids);
  SPARROW_CHECK_EQ(position + 1, sequence.num_tokens());
  if (end > sequence.max_computed_tokens()) return false;
  // A block that is another choice's too is copied by the next draw's step.
  if (position < sequence.blocks.capacity_tokens() && sequence.blocks.is_shared(position / kBlockTokens))
    return false;
  if (!sequence.blocks.reserve(end)) return false;
  sequence.ids.insert(sequence.ids.end(), ids.begin(), ids.end());
  return true;
}

void Scheduler::tell_cache_events(CacheEventSink sink) {
  cache_event_sink_ = std::move(sink);
  for (Group& group : groups_) {
    group.cache.record(group.cache_events);
    group.cache_events_lost = true;  // whoever listens may have heard of caches before these
  }
  send_cache_events();
}

void Scheduler::send_cache_events() {
  for (Group& group : groups_) {
    if (group.cache_events_lost) {
      group.cache_events = {{.kind = CacheEvent::Kind::kCleared}};
      group.cache.list(group.cache_events);
    }
    if (group.cache_events.empty()) continue;
    group.cache_events_lost = !cache_event_sink_(group.index, std::exchange(group.cache_events, {}));
  }
}

const Sequence* Scheduler::find(SequenceId id) const {
  const auto at = sequences_.find(id);
  return at == sequences_.end() ? nullptr : at->second.get();
}

// The most choices that some group has a place for.
int Scheduler::free_places() const {
  int places = 0;
  for (const Group& group : groups_)
    places = std::max(places, limits_.max_step_sequences - group.num_choices);
  return places;
}

WaitReason Scheduler::reason_of(const Sequence& waiting, int free_places) {
  if (waiting.paused) return WaitReason::kPaused;
  if (waiting.waits_for != 0) return WaitReason::kSharedPrefix;
  if (waiting.num_choices > free_places) return WaitReason::kSequences;
  return waiting.blocks_missing > 0 ? WaitReason::kBlocks : WaitReason::kTurn;
}

std::optional<WaitingInfo> Scheduler::waiting_info(SequenceId id) const {
  const Sequence* sequence = find(id);
  if (sequence == nullptr || sequence->state != SequenceState::kWaiting) return std::nullopt;
  const WaitReason reason = reason_of(*sequence, free_places());
  return WaitingInfo{.queue_position = static_cast<int64_t>(waiting_index(*sequence)),
                     .reason = reason,
                     .blocks_missing = reason == WaitReason::kBlocks ? sequence->blocks_missing : 0};
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats;
  for (const Group& group : groups_) {
    GroupStats& own = stats.groups.emplace_back(group.totals);
    own.running = static_cast<int>(group.running.size()) - group.num_paused;
    stats.waiting_by_reason[static_cast<size_t>(WaitReason::kPaused)] += group.num_paused;
    stats.waiting += group.num_paused;
    own.blocks_total = group.pool.num_blocks();
    own.blocks_in_use = group.pool.num_in_use();
    own.blocks_cached = group.pool.num_cached();
    own.blocks_free = group.pool.num_free();
    stats += own;
  }
  stats.waiting += static_cast<int>(waiting_.size());
  const int places = free_places();
  for (const Waiting& waiting : waiting_)
    ++stats.waiting_by_reason[static_cast<size_t>(reason_of(*waiting.sequence, places))];
  stats.tokens_planned = num_tokens_planned_;
  stats.steps = num_steps_;
  return stats;
}

void Scheduler::publish(Sequence& sequence) {
  if (!limits_.prefix_caching) return;
  const int64_t full = sequence.num_computed / kBlockTokens;
  if (full == sequence.num_published) return;
  PrefixCache& cache = group_of(sequence).cache;
  cache.extend_digests(content(sequence), full, sequence.digests);
  for (int64_t& block = sequence.num_published; block < full; ++block) {
    const BlockId own = sequence.blocks.blocks()[block];
    const BlockId known =
        cache.publish(content(sequence), sequence.digests[block], block, sequence.blocks.blocks());
    if (known != own) sequence.blocks.replace(block, known);
  }
  release_followers(sequence, /*all=*/false);
}

// Makes the other choices of a prompt, one for each id, over the same blocks.
void Scheduler::fork(Sequence& sequence, std::span<const int32_t> ids) {
  Group& group = group_of(sequence);
  group.num_choices -= std::exchange(sequence.num_choices, 1) - 1;
  for (size_t i = 0; i < ids.size(); ++i) {
    auto other = std::make_unique<Sequence>(Sequence{.ids = sequence.ids,
                                                     .blocks = sequence.blocks.fork(sequence.num_computed),
                                                     .num_computed = sequence.num_computed,
                                                     .id = sequence.id + 1 + i,
                                                     .owner = sequence.owner,
                                                     .choice = static_cast<int>(i) + 1,
                                                     .num_prompt_tokens = sequence.num_prompt_tokens,
                                                     .num_cached_tokens = sequence.num_cached_tokens,
                                                     .max_total_tokens = sequence.max_total_tokens,
                                                     .state = SequenceState::kRunning,
                                                     .paused = sequence.paused,
                                                     .started = true,
                                                     .score_prompt = sequence.score_prompt,
                                                     .salt = sequence.salt,
                                                     .media = sequence.media,
                                                     .segments = sequence.segments,
                                                     .digests = sequence.digests,
                                                     .num_published = sequence.num_published,
                                                     .num_scored = sequence.num_scored,
                                                     .order = sequence.order,
                                                     .group = sequence.group});
    other->ids.push_back(ids[i]);
    group.insert(*other);
    sequences_.emplace(other->id, std::move(other));
  }
}

void Scheduler::remove(Sequence& sequence) {
  if (sequence.state == SequenceState::kWaiting) {
    waiting_.erase(waiting_.begin() + static_cast<int64_t>(waiting_index(sequence)));
  } else {
    group_of(sequence).erase(group_of(sequence).index_of(sequence));
  }
  release_followers(sequence, /*all=*/true);
  sequences_.erase(sequence.id);
}

void Scheduler::wait(Sequence& sequence) {
  sequence.state = SequenceState::kWaiting;
  waiting_.insert(
      waiting_.begin() + static_cast<int64_t>(waiting_index(sequence)),
      {.order = sequence.order, .id = sequence.id, .sequence = &sequence, .blocked = sequence.paused});
}

// Lets those go on whose prefix `leader` has computed; all of them when it will not go on itself.
void Scheduler::release_followers(Sequence& leader, bool all) {
  if (!std::exchange(leader.has_followers, false)) return;
  for (Waiting& waiting : waiting_) {
    Sequence& follower = *waiting.sequence;
    if (follower.waits_for != leader.id) continue;
    if (!all && leader.num_published < follower.blocks_awaited) {
      leader.has_followers = true;
      continue;
    }
    follower.waits_for = 0;
    waiting.blocked = follower.paused;
  }
}

// Where a sequence is in the queue, or belongs.
size_t Scheduler::waiting_index(const Sequence& sequence) const {
  return std::partition_point(waiting_.begin(), waiting_.end(),
                              [&](const Waiting& other) {
                                return goes_before(other.order, other.id, sequence.order, sequence.id);
                              }) -
         waiting_.begin();
}

std::span<Sequence* const> Scheduler::need_features() {
  need_features_.clear();
  for (const Group& group : groups_)
    for (Sequence* sequence : group.running)
      if (!sequence->paused && sequence->needs_features()) need_features_.push_back(sequence);
  return need_features_;
}

PrefixContent Scheduler::content(const Sequence& sequence) {
  return {.salt = sequence.salt, .ids = sequence.ids, .media = sequence.media};
}

}  // namespace sparrow
