// SPDX-License-Identifier: Apache-2.0
// Who starts, and in which group. There is one queue. Whoever starts, for the first time or again after it
// gave way, goes where most of its prefix is known, or else where most blocks are available; a group that is
// full does not hold up the others.
#include <algorithm>
#include <limits>
#include <tuple>

#include "engine/schedule/scheduler.h"

namespace sparrow {
namespace {

// Sequences at the front of the queue may be passed over by those that need fewer blocks, but not for ever.
constexpr int kMaxOvertaken = 64;
constexpr size_t kMaxPassedOver = 8;  // in one step, to bound its cost
// Steps after which a sequence that did not get its blocks looks for a longer known prefix.
constexpr uint64_t kAskAgainSteps = 32;
// An output costs its group about as much time as so many tokens of a prompt. A prefix that all prompts begin
// with is soon known in every group then, and not all of them run in the first.
constexpr int64_t kTokensPerOutput = 512;

}  // namespace

void Scheduler::admit() {
  passed_over_.clear();
  for (size_t i = 0; i < waiting_.size();) {
    Sequence& sequence = *waiting_[i].sequence;
    if (waiting_[i].blocked) {
      ++i;
      continue;
    }
    candidates_.clear();
    for (Group& group : groups_)
      if (group.num_tokens < limits_.max_step_tokens &&
          group.num_choices + sequence.num_choices <= limits_.max_step_sequences)
        candidates_.push_back(&group);
    if (candidates_.empty()) break;
    const Start result = start(sequence);
    i = waiting_index(sequence);  // paused ones may have joined the queue
    if (result == Start::kStarted) {
      waiting_.erase(waiting_.begin() + static_cast<int64_t>(i));
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

Scheduler::Start Scheduler::start(Sequence& sequence) {
  if (lacks_blocks_as_before(sequence)) return Start::kNoBlocks;
  for (Group* group : candidates_) look_up(*group, sequence);
  rank_candidates();
  if (const Group& best = *candidates_.front(); best.leader != nullptr) {
    sequence.waits_for = best.leader->id;
    sequence.blocks_awaited = best.blocks_awaited;
    best.leader->has_followers = true;
    return Start::kFollows;
  }
  const int64_t num_blocks =
      blocks_for_tokens(std::min(sequence.num_tokens() + 1, sequence.max_computed_tokens()));
  Group* group = group_with_room(sequence, num_blocks);
  if (group == nullptr) {
    sequence.ask_again = step_ + kAskAgainSteps;
    return Start::kNoBlocks;
  }
  take_blocks(*group, sequence, num_blocks);
  sequence.state = SequenceState::kRunning;
  sequence.started = true;
  group->insert(sequence);
  group->prefills.push_back(&sequence);
  if (sequence.blocks.capacity_tokens() < sequence.max_computed_tokens()) ++group->num_growing;
  return Start::kStarted;
}

// Whether a sequence that asked not long ago need not be looked at again: no group has as many blocks as it
// wanted where it wanted fewest.
bool Scheduler::lacks_blocks_as_before(Sequence& sequence) const {
  if (step_ >= sequence.ask_again) return false;
  int64_t missing = std::numeric_limits<int64_t>::max();
  for (const Group* group : candidates_) {
    if (group->num_paused > 0) return false;
    missing = std::min(missing, group->missing_blocks(sequence.blocks_wanted));
  }
  if (missing <= 0) return false;
  sequence.blocks_missing = missing;
  return true;
}

void Scheduler::look_up(Group& group, const Sequence& sequence) const {
  group.hit.clear();
  group.leader = nullptr;
  group.blocks_awaited = 0;
  if (!limits_.prefix_caching || sequence.score_prompt) return;
  group.cache.find(content(sequence), sequence.digests, sequence.num_tokens() - 1, group.hit);
  find_leader(group, sequence);
}

// Whether a prompt that is being computed begins with more of this one than is known: then it is better to
// wait than to compute the same again.
void Scheduler::find_leader(Group& group, const Sequence& sequence) const {
  const auto first = static_cast<int64_t>(group.hit.blocks.size());
  const auto full = std::min<int64_t>(sequence.digests.size(), (sequence.num_tokens() - 1) / kBlockTokens);
  if (first >= full) return;
  for (Sequence* leader : group.prefills) {
    const auto theirs = static_cast<int64_t>(leader->digests.size());
    if (theirs <= first || leader->num_published > first || leader->digests[first] != sequence.digests[first])
      continue;
    // Each digest covers all blocks before it: equal ones come before unequal ones.
    int64_t same = first + 1, different = std::min(full, theirs) + 1;
    while (same + 1 < different) {
      const int64_t middle = (same + different) / 2;
      (leader->digests[middle - 1] == sequence.digests[middle - 1] ? same : different) = middle;
    }
    group.leader = leader;
    group.blocks_awaited = same;
    return;
  }
}

// The longest prefix first, known or soon known; what a group has of it beyond the others counts less the
// more outputs it runs beyond them. Then most blocks, fewest outputs, fewest blocks that hold something.
void Scheduler::rank_candidates() {
  if (candidates_.size() == 1) return;
  int64_t fewest_tokens = std::numeric_limits<int64_t>::max();
  int fewest_choices = std::numeric_limits<int>::max();
  for (Group* group : candidates_) {
    group->tokens_ahead = std::max(group->hit.num_tokens(), group->blocks_awaited * kBlockTokens);
    fewest_tokens = std::min(fewest_tokens, group->tokens_ahead);
    fewest_choices = std::min(fewest_choices, group->num_choices);
  }
  for (Group* group : candidates_)
    group->tokens_ahead = std::max<int64_t>(
        0, group->tokens_ahead - fewest_tokens - kTokensPerOutput * (group->num_choices - fewest_choices));
  const auto rank = [](const Group* group) {
    return std::tuple(-group->tokens_ahead, -group->pool.num_available(), group->num_choices,
                      -group->pool.num_free(), group->index);
  };
  std::sort(candidates_.begin(), candidates_.end(),
            [&](const Group* a, const Group* b) { return rank(a) < rank(b); });
}

// The best candidate that has the blocks. Where none has, paused sequences give theirs. nullptr: not even so.
Scheduler::Group* Scheduler::group_with_room(Sequence& sequence, int64_t num_blocks) {
  const auto has_room = [&](Group& group) {
    const auto cached = std::count_if(group.hit.blocks.begin(), group.hit.blocks.end(),
                                      [&](BlockId block) { return group.pool.num_owners(block) == 0; });
    group.blocks_wanted = num_blocks - static_cast<int64_t>(group.hit.blocks.size()) + cached;
    return group.missing_blocks(group.blocks_wanted) <= 0;
  };
  for (Group* group : candidates_)
    if (has_room(*group)) return group;
  for (Group* group : candidates_)
    while (preempt_paused(*group))
      if (has_room(*group)) return group;
  sequence.blocks_wanted = sequence.blocks_missing = std::numeric_limits<int64_t>::max();
  for (const Group* group : candidates_) {
    sequence.blocks_wanted = std::min(sequence.blocks_wanted, group->blocks_wanted);
    sequence.blocks_missing = std::min(sequence.blocks_missing, group->missing_blocks(group->blocks_wanted));
  }
  return nullptr;
}

// Fills an empty table: known blocks, a copy of one known in part, new ones. The pool has enough.
void Scheduler::take_blocks(Group& group, Sequence& sequence, int64_t num_blocks) {
  const PrefixHit& hit = group.hit;
  sequence.group = group.index;
  sequence.blocks.set_pool(group.pool);
  for (const BlockId block : hit.blocks) sequence.blocks.append_shared(block);
  if (hit.partial_block >= 0) {  // lately used: the last to be evicted
    group.pool.share(hit.partial_block);
    group.pool.release(hit.partial_block);
  }
  SPARROW_CHECK(sequence.blocks.reserve(num_blocks * kBlockTokens));
  // The source may be another's by now, or this sequence's: copies come before anything is written.
  if (hit.partial_block >= 0)
    plan_.copies.push_back({hit.partial_block, sequence.blocks.blocks()[hit.blocks.size()]});
  sequence.num_published = static_cast<int64_t>(hit.blocks.size());
  sequence.num_computed = hit.num_tokens();
  // Whether the features are there is not known here: need_features() is asked before the next step.
  if (sequence.needs_features())
    sequence.num_ready = std::ranges::find_if(*sequence.segments, [&](const MediaSegment& segment) {
                           return segment.end() > sequence.num_computed;
                         })->begin();
  sequence.blocks_wanted = sequence.blocks_missing = 0;
  sequence.num_overtaken = 0;
  if (sequence.started) return;
  sequence.num_cached_tokens = hit.num_tokens();
  group.totals.prefix_tokens_queried += sequence.num_tokens();
  group.totals.prefix_tokens_hit += hit.num_tokens();
}

}  // namespace sparrow
