// SPDX-License-Identifier: Apache-2.0
// What runs next in each group: decodes first, then prompts, which share the rest of the step. Running
// sequences are served best first, and whoever needs a block takes it from the worst of its group: so the
// best one always gets on.
#include <algorithm>
#include <utility>

#include "engine/schedule/scheduler.h"

namespace sparrow {
namespace {

// Of prompts in a step, however little time there is: what a kernel computes at a time.
constexpr int64_t kLeastPromptTokens = 16;

}  // namespace

const StepPlan& Scheduler::plan_step(SchedulerTime now) {
  SPARROW_CHECK_EQ(num_planned_, 0);
  num_planned_ = 1;
  ++step_;
  plan_.slices.clear();
  plan_.copies.clear();
  plan_.expired.clear();
  plan_.num_tokens = 0;
  if (now >= earliest_deadline_) drop_expired(now);
  for (Group& group : groups_) plan_decodes(group);
  admit();
  for (Group& group : groups_) {
    plan_prefills(group);
    plan_.num_tokens += group.num_tokens;
    if (plan_.slices.empty())
      plan_.slices.swap(group.slices);
    else
      plan_.slices.insert(plan_.slices.end(), group.slices.begin(), group.slices.end());
  }
  const int places = free_places();
  for (const Waiting& waiting : waiting_)
    waiting.sequence->wait_reason = reason_of(*waiting.sequence, places);
  ++num_steps_;
  num_tokens_planned_ += plan_.num_tokens;
  return plan_;
}

void Scheduler::drop_expired(SchedulerTime now) {
  earliest_deadline_ = SchedulerTime::max();
  for (const Waiting& waiting : waiting_) {
    const Sequence& sequence = *waiting.sequence;
    if (sequence.started) continue;
    if (now >= sequence.queue_deadline)
      plan_.expired.push_back({.id = sequence.id, .owner = sequence.owner, .reason = sequence.wait_reason});
    else
      earliest_deadline_ = std::min(earliest_deadline_, sequence.queue_deadline);
  }
  for (const Expired& expired : plan_.expired) remove(*sequences_.find(expired.id)->second);
}

void Scheduler::plan_decodes(Group& group) {
  group.slices.clear();
  group.prefills.clear();
  group.num_tokens = 0;
  group.num_growing = 0;
  for (size_t i = 0; i < group.running.size(); ++i) {
    Sequence& sequence = *group.running[i];
    if (sequence.paused) continue;
    if (sequence.blocks.capacity_tokens() < sequence.max_computed_tokens()) ++group.num_growing;
    if (sequence.num_tokens() - sequence.num_computed > 1 || sequence.num_runnable() == 0) {
      group.prefills.push_back(&sequence);
      continue;
    }
    bool room = has_slot(sequence);
    while (!room && preempt_another(group, i)) room = has_slot(sequence);
    if (room)
      add_slice(group, sequence, 1);
    else
      preempt(group, i);  // the worst of all: nobody comes after it
  }
}

// Whether the next token has a place in a block that is the sequence's own.
bool Scheduler::has_slot(Sequence& sequence) {
  const int64_t position = sequence.num_computed;
  if (position >= sequence.blocks.capacity_tokens()) return sequence.blocks.reserve(position + 1);
  const int64_t block = position / kBlockTokens;
  if (!sequence.blocks.is_shared(block)) return true;
  const std::optional<BlockCopy> copy = sequence.blocks.copy_on_write(block);
  if (copy) plan_.copies.push_back(*copy);
  return copy.has_value();
}

// Takes the blocks of a paused sequence, or else of the worst one after running[current]. False: there is
// none.
bool Scheduler::preempt_another(Group& group, size_t& current) {
  const Sequence* sequence = group.running[current];
  if (!preempt_paused(group)) {
    if (current + 1 == group.running.size()) return false;
    preempt(group, group.running.size() - 1);
  }
  current = group.index_of(*sequence);
  return true;
}

bool Scheduler::preempt_paused(Group& group) {
  if (group.num_paused == 0) return false;
  size_t index = group.running.size() - 1;
  while (!group.running[index]->paused) --index;
  preempt(group, index);
  return true;
}

void Scheduler::preempt(Group& group, size_t index) {
  Sequence& sequence = *group.running[index];
  group.erase(index);
  sequence.blocks.clear();
  sequence.num_computed = 0;
  sequence.num_published = 0;
  wait(sequence);
  release_followers(sequence, /*all=*/true);
  ++group.totals.preemptions;
}

// What the decodes left is shared by the prompts: equally, and what a short one does not need goes to the
// others. If there are too many for chunks of min_chunk, half of the places go to those nearest to their end,
// so that a short one is soon done, and half to those that have waited longest, so that a long one gets on.
void Scheduler::plan_prefills(Group& group) {
  std::vector<Sequence*>& prefills = group.prefills;
  std::erase_if(prefills, [](const Sequence* s) { return s->num_runnable() == 0; });
  int64_t left =
      std::clamp<int64_t>(step_tokens_ - group.num_tokens, kLeastPromptTokens, limits_.max_step_tokens);
  left = std::min<int64_t>(left, limits_.max_step_tokens - group.num_tokens);
  // In a short step two prompts have a part: the one that is soonest done and the one that has waited
  // longest.
  const int64_t chunk = std::min<int64_t>(limits_.min_chunk, std::max(left / 2, kLeastPromptTokens));
  const auto by_standing = [](const Sequence* a, const Sequence* b) {
    return std::pair(a->order, a->id) < std::pair(b->order, b->id);
  };
  const size_t served =
      std::min(prefills.size(), static_cast<size_t>(std::max<int64_t>(left / chunk, left > 0)));
  const auto remaining = [](const Sequence* s) { return s->num_runnable(); };
  const auto shorter = [&](const Sequence* a, const Sequence* b) {
    return remaining(a) != remaining(b) ? remaining(a) < remaining(b) : by_standing(a, b);
  };
  const auto waited_longer = [&](const Sequence* a, const Sequence* b) {
    return a->last_step != b->last_step ? a->last_step < b->last_step : by_standing(a, b);
  };
  if (served < prefills.size()) {
    const auto half = prefills.begin() + static_cast<int64_t>((served + step_ % 2) / 2);
    std::nth_element(prefills.begin(), half, prefills.end(), shorter);
    std::nth_element(half, prefills.begin() + static_cast<int64_t>(served), prefills.end(), waited_longer);
    prefills.resize(served);
  }
  std::sort(prefills.begin(), prefills.end(), shorter);
  for (size_t i = 0; i < served; ++i) {
    const int64_t share = left / static_cast<int64_t>(served - i);
    const int64_t num_tokens = std::min(remaining(prefills[i]), share);
    add_slice(group, *prefills[i], num_tokens);
    left -= num_tokens;
  }
}

void Scheduler::add_slice(Group& group, Sequence& sequence, int64_t num_tokens) {
  const int64_t first = sequence.num_computed, end = first + num_tokens;
  SPARROW_CHECK_LE(end, sequence.max_computed_tokens());
  const auto rows = static_cast<int>(num_tokens);
  group.slices.push_back({.sequence = &sequence,
                          .first = first,
                          .num_tokens = rows,
                          .sampled = {.first = rows - 1, .count = end == sequence.num_tokens() ? 1 : 0},
                          .draws_per_row = sequence.num_choices});
  if (sequence.score_prompt) score_rows(group.slices.back());
  group.num_tokens += rows;
  sequence.last_step = step_;
  ++sequence.num_planned;
}

// A row is about the token after it. What is computed again was scored the first time.
void Scheduler::score_rows(StepSlice& slice) {
  Sequence& sequence = *slice.sequence;
  const int64_t first = std::max(slice.first, sequence.num_scored);
  const int64_t end = std::min(slice.first + slice.num_tokens, sequence.num_prompt_tokens - 1);
  if (first >= end) return;
  slice.scored = {.first = static_cast<int>(first - slice.first), .count = static_cast<int>(end - first)};
  sequence.num_scored = end;
}

const StepPlan* Scheduler::plan_ahead(SchedulerTime now) {
  SPARROW_CHECK_EQ(num_planned_, 1);
  if (others_want_to_run(now)) return nullptr;
  ahead_.slices.clear();
  ahead_.copies.clear();
  ahead_.expired.clear();
  for (size_t i = 0; i < plan_.slices.size(); ++i) {
    const StepSlice& slice = plan_.slices[i];  // has one draw, like all of them
    Sequence& sequence = *slice.sequence;
    const int64_t position = slice.first + 1;
    if (sequence.state == SequenceState::kFinished || sequence.paused ||
        position == sequence.max_computed_tokens())
      continue;
    // Its last block is its own since the step before. A new one that is not used now will be later.
    if (!sequence.blocks.reserve(position + 1)) return nullptr;
    ahead_.slices.push_back({.sequence = &sequence,
                             .first = position,
                             .num_tokens = 1,
                             .sampled = {.first = 0, .count = 1},
                             .drawn_by = static_cast<int>(i)});
  }
  if (ahead_.slices.empty()) return nullptr;
  num_planned_ = 2;
  ++step_;
  ahead_.num_tokens = static_cast<int>(ahead_.slices.size());
  for (const StepSlice& slice : ahead_.slices) {
    slice.sequence->last_step = step_;
    ++slice.sequence->num_planned;
  }
  ++num_steps_;
  num_tokens_planned_ += ahead_.num_tokens;
  return &ahead_;
}

// Whether the step after the planned one may hold anything but its sequences' next tokens.
bool Scheduler::others_want_to_run(SchedulerTime now) const {
  if (now >= earliest_deadline_) return true;
  for (const StepSlice& slice : plan_.slices)
    if (slice.num_tokens != 1 || slice.num_draws() != 1) return true;
  const auto wants_to_run = [](const Sequence* sequence) {
    return !sequence->paused && sequence->num_planned == 0;
  };
  for (const Group& group : groups_) {
    if (std::any_of(group.running.begin(), group.running.end(), wants_to_run)) return true;
  }
  return free_places() > 0 &&
         std::any_of(waiting_.begin(), waiting_.end(), [](const Waiting& w) { return !w.blocked; });
}

}  // namespace sparrow
