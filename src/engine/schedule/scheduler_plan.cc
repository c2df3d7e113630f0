// SPDX-License-Identifier: Apache-2.0
// What runs next: decodes first, then prompts, which share the rest of the step. Running sequences are served
// best first, and whoever needs a block takes it from the worst: so the best one always gets on.
#include <algorithm>
#include <utility>

#include "engine/schedule/scheduler.h"

namespace sparrow {
namespace {

// Sequences at the front of the queue may be passed over by those that need fewer blocks, but not for ever.
constexpr int kMaxOvertaken = 64;
constexpr size_t kMaxPassedOver = 8;  // in one step, to bound its cost
// Steps after which a sequence that did not get its blocks looks for a longer known prefix.
constexpr uint64_t kAskAgainSteps = 32;
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
  plan_decodes();
  admit();
  plan_prefills();
  for (const Waiting& waiting : waiting_) waiting.sequence->wait_reason = reason_of(*waiting.sequence);
  ++totals_.steps;
  totals_.tokens_planned += plan_.num_tokens;
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

void Scheduler::plan_decodes() {
  prefills_.clear();
  num_growing_ = 0;
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.paused) continue;
    if (sequence.blocks.capacity_tokens() < sequence.max_computed_tokens()) ++num_growing_;
    if (sequence.num_tokens() - sequence.num_computed > 1) {
      prefills_.push_back(&sequence);
      continue;
    }
    bool room = has_slot(sequence);
    while (!room && preempt_another(i)) room = has_slot(sequence);
    if (room)
      add_slice(sequence, 1);
    else
      preempt(i);  // the worst of all: nobody comes after it
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

// Takes the blocks of a paused sequence, or else of the worst one after running_[current]. False: there is
// none.
bool Scheduler::preempt_another(size_t& current) {
  const Sequence* sequence = running_[current];
  if (!preempt_paused()) {
    if (current + 1 == running_.size()) return false;
    preempt(running_.size() - 1);
  }
  current = running_index(*sequence);
  return true;
}

bool Scheduler::preempt_paused() {
  if (num_paused_ == 0) return false;
  size_t index = running_.size() - 1;
  while (!running_[index]->paused) --index;
  preempt(index);
  return true;
}

void Scheduler::preempt(size_t index) {
  Sequence& sequence = *running_[index];
  running_.erase(running_.begin() + static_cast<int64_t>(index));
  num_choices_running_ -= sequence.num_choices;
  num_paused_ -= sequence.paused;
  sequence.blocks.clear();
  sequence.num_computed = 0;
  sequence.num_published = 0;
  wait(sequence);
  release_followers(sequence, /*all=*/true);
  ++totals_.preemptions;
}

void Scheduler::admit() {
  passed_over_.clear();
  for (size_t i = 0; i < waiting_.size() && plan_.num_tokens < limits_.max_step_tokens;) {
    Sequence& sequence = *waiting_[i].sequence;
    if (waiting_[i].blocked) {
      ++i;
      continue;
    }
    if (num_choices_running_ + sequence.num_choices > limits_.max_step_sequences) break;
    const Start result = start(sequence);
    i = waiting_index(sequence);  // paused ones may have joined the queue
    if (result == Start::kStarted) {
      run(sequence);
      prefills_.push_back(&sequence);
      if (sequence.blocks.capacity_tokens() < sequence.max_computed_tokens()) ++num_growing_;
      for (Sequence* other : passed_over_) ++other->num_overtaken;
      continue;
    }
    waiting_[i].blocked = result == Start::kFollows;
    ++i;
    if (result == Start::kFollows) continue;
    if (sequence.num_overtaken >= kMaxOvertaken || passed_over_.size() == kMaxPassedOver) break;
    passed_over_.push_back(&sequence);
  }
}

// Of the sequences that may still grow about half need a block within the next half block of steps. Without
// room for them a newcomer would soon be thrown out again.
int64_t Scheduler::reserved_blocks() const {
  return running_.empty() ? 0 : num_growing_ / 2;
}

Scheduler::Start Scheduler::start(Sequence& sequence) {
  const int64_t num_blocks =
      blocks_for_tokens(std::min(sequence.num_tokens() + 1, sequence.max_computed_tokens()));
  const auto missing = [&] { return sequence.blocks_wanted + reserved_blocks() - pool_.num_available(); };
  if (step_ < sequence.ask_again && num_paused_ == 0 && missing() > 0) {
    sequence.blocks_missing = missing();
    return Start::kNoBlocks;
  }
  hit_.clear();
  if (limits_.prefix_caching && !sequence.score_prompt) {
    cache_.find(content(sequence), sequence.digests, sequence.num_tokens() - 1, hit_);
    if (follow(sequence)) return Start::kFollows;
  }
  for (;;) {
    const auto cached = std::count_if(hit_.blocks.begin(), hit_.blocks.end(),
                                      [&](BlockId block) { return pool_.num_owners(block) == 0; });
    sequence.blocks_wanted = num_blocks - static_cast<int64_t>(hit_.blocks.size()) + cached;
    sequence.blocks_missing = missing();
    if (sequence.blocks_missing <= 0) break;
    if (preempt_paused()) continue;
    sequence.ask_again = step_ + kAskAgainSteps;
    return Start::kNoBlocks;
  }
  take_blocks(sequence, num_blocks);
  return Start::kStarted;
}

// Whether a prompt that is being computed begins with more of this one than is known: then it is better to
// wait than to compute the same again.
bool Scheduler::follow(Sequence& sequence) {
  const auto first = static_cast<int64_t>(hit_.blocks.size());
  const auto full = std::min<int64_t>(sequence.digests.size(), (sequence.num_tokens() - 1) / kBlockTokens);
  if (first >= full) return false;
  for (Sequence* leader : prefills_) {
    const auto theirs = static_cast<int64_t>(leader->digests.size());
    if (theirs <= first || leader->num_published > first || leader->digests[first] != sequence.digests[first])
      continue;
    // Each digest covers all blocks before it: equal ones come before unequal ones.
    int64_t same = first + 1, different = std::min(full, theirs) + 1;
    while (same + 1 < different) {
      const int64_t middle = (same + different) / 2;
      (leader->digests[middle - 1] == sequence.digests[middle - 1] ? same : different) = middle;
    }
    sequence.waits_for = leader->id;
    sequence.blocks_awaited = same;
    leader->has_followers = true;
    return true;
  }
  return false;
}

// Fills an empty table: known blocks, a copy of one known in part, new ones. The pool has enough.
void Scheduler::take_blocks(Sequence& sequence, int64_t num_blocks) {
  for (const BlockId block : hit_.blocks) sequence.blocks.append_shared(block);
  if (hit_.partial_block >= 0) {  // lately used: the last to be evicted
    pool_.share(hit_.partial_block);
    pool_.release(hit_.partial_block);
  }
  SPARROW_CHECK(sequence.blocks.reserve(num_blocks * kBlockTokens));
  // The source may be another's by now, or this sequence's: copies come before anything is written.
  if (hit_.partial_block >= 0)
    plan_.copies.push_back({hit_.partial_block, sequence.blocks.blocks()[hit_.blocks.size()]});
  sequence.num_published = static_cast<int64_t>(hit_.blocks.size());
  sequence.num_computed = hit_.num_tokens();
  sequence.blocks_wanted = sequence.blocks_missing = 0;
  sequence.num_overtaken = 0;
  if (sequence.started) return;
  sequence.num_cached_tokens = hit_.num_tokens();
  totals_.prefix_tokens_queried += sequence.num_tokens();
  totals_.prefix_tokens_hit += hit_.num_tokens();
}

// What the decodes left is shared by the prompts: equally, and what a short one does not need goes to the
// others. If there are too many for chunks of min_chunk, half of the places go to those nearest to their end,
// so that a short one is soon done, and half to those that have waited longest, so that a long one gets on.
void Scheduler::plan_prefills() {
  int64_t left =
      std::clamp<int64_t>(step_tokens_ - plan_.num_tokens, kLeastPromptTokens, limits_.max_step_tokens);
  left = std::min<int64_t>(left, limits_.max_step_tokens - plan_.num_tokens);
  // In a short step two prompts have a part: the one that is soonest done and the one that has waited
  // longest.
  const int64_t chunk = std::min<int64_t>(limits_.min_chunk, std::max(left / 2, kLeastPromptTokens));
  const auto by_standing = [](const Sequence* a, const Sequence* b) {
    return std::pair(a->order, a->id) < std::pair(b->order, b->id);
  };
  const size_t served =
      std::min(prefills_.size(), static_cast<size_t>(std::max<int64_t>(left / chunk, left > 0)));
  const auto remaining = [](const Sequence* s) { return s->num_tokens() - s->num_computed; };
  const auto shorter = [&](const Sequence* a, const Sequence* b) {
    return remaining(a) != remaining(b) ? remaining(a) < remaining(b) : by_standing(a, b);
  };
  const auto waited_longer = [&](const Sequence* a, const Sequence* b) {
    return a->last_step != b->last_step ? a->last_step < b->last_step : by_standing(a, b);
  };
  if (served < prefills_.size()) {
    const auto half = prefills_.begin() + static_cast<int64_t>((served + step_ % 2) / 2);
    std::nth_element(prefills_.begin(), half, prefills_.end(), shorter);
    std::nth_element(half, prefills_.begin() + static_cast<int64_t>(served), prefills_.end(), waited_longer);
    prefills_.resize(served);
  }
  std::sort(prefills_.begin(), prefills_.end(), shorter);
  for (size_t i = 0; i < served; ++i) {
    const int64_t share = left / static_cast<int64_t>(served - i);
    const int64_t num_tokens = std::min(remaining(prefills_[i]), share);
    add_slice(*prefills_[i], num_tokens);
    left -= num_tokens;
  }
}

void Scheduler::add_slice(Sequence& sequence, int64_t num_tokens) {
  const int64_t first = sequence.num_computed, end = first + num_tokens;
  SPARROW_CHECK_LE(end, sequence.max_computed_tokens());
  const auto rows = static_cast<int>(num_tokens);
  plan_.slices.push_back({.sequence = &sequence,
                          .first = first,
                          .num_tokens = rows,
                          .sampled = {.first = rows - 1, .count = end == sequence.num_tokens() ? 1 : 0},
                          .draws_per_row = sequence.num_choices});
  if (sequence.score_prompt) score_rows(plan_.slices.back());
  plan_.num_tokens += rows;
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
  ++totals_.steps;
  totals_.tokens_planned += ahead_.num_tokens;
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
  if (std::any_of(running_.begin(), running_.end(), wants_to_run)) return true;
  return num_choices_running_ < limits_.max_step_sequences &&
         std::any_of(waiting_.begin(), waiting_.end(), [](const Waiting& w) { return !w.blocked; });
}

}  // namespace sparrow
