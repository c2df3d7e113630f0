// SPDX-License-Identifier: Apache-2.0
// SchedulerGroup: what the scheduler knows of one data-parallel group: the blocks of its cache, the sequences
// that run in it, and its part of the step that is being planned. The scheduler's own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/schedule/scheduler_types.h"
#include "engine/schedule/sequence.h"
#include "engine/schedule/step_plan.h"
#include "kv/block_pool.h"
#include "kv/cache_event.h"
#include "kv/prefix_cache.h"

namespace sparrow {

// The order of the queue and of the running sequences: best first.
inline bool goes_before(int64_t order_a, SequenceId id_a, int64_t order_b, SequenceId id_b) {
  return order_a != order_b ? order_a < order_b : id_a < id_b;
}

struct SchedulerGroup {
  // Block ids are one space, of which each group has an equal part.
  SchedulerGroup(int index, int num_blocks, std::optional<uint64_t> block_order_seed)
      : index(index),
        pool(num_blocks, block_order_seed ? std::optional(*block_order_seed + index) : std::nullopt,
             index * num_blocks),
        cache(pool) {}

  const int index;
  BlockPool pool;
  PrefixCache cache;
  GroupStats totals;  // since the start; the rest of it is not kept up

  std::vector<CacheEvent> cache_events;  // that nobody has been told yet
  bool cache_events_lost = false;        // some were not taken

  std::vector<Sequence*> running;  // best first
  int num_choices = 0;             // of these, those to come counted
  int num_paused = 0;              // of these

  // Of the step that is being planned.
  int num_tokens = 0;
  int64_t num_growing = 0;  // running sequences that may yet need more blocks
  std::vector<StepSlice> slices;
  std::vector<Sequence*> prefills;

  // What it has for the sequence that is being placed.
  PrefixHit hit;
  Sequence* leader = nullptr;  // computes more of its prefix than is known here
  int64_t blocks_awaited = 0;  // of that prefix
  int64_t tokens_ahead = 0;    // of its prefix, that other groups lack; see Scheduler::rank_candidates()
  int64_t blocks_wanted = 0;   // that it would take from those in no use

  size_t index_of(const Sequence& sequence) const {  // where a sequence is in `running`, or belongs
    const auto at = std::partition_point(running.begin(), running.end(), [&](const Sequence* other) {
      return goes_before(other->order, other->id, sequence.order, sequence.id);
    });
    return at - running.begin();
  }
  void insert(Sequence& sequence) {
    running.insert(running.begin() + static_cast<int64_t>(index_of(sequence)), &sequence);
    num_choices += sequence.num_choices;
    num_paused += sequence.paused;
  }
  void erase(size_t at) {
    num_choices -= running[at]->num_choices;
    num_paused -= running[at]->paused;
    running.erase(running.begin() + static_cast<int64_t>(at));
  }

  // Of the sequences that may still grow about half need a block within the next half block of steps. Without
  // room for them a newcomer would soon be thrown out again.
  int64_t reserved_blocks() const { return running.empty() ? 0 : num_growing / 2; }
  // Of `wanted` blocks for a newcomer; none or fewer: it can have them.
  int64_t missing_blocks(int64_t wanted) const { return wanted + reserved_blocks() - pool.num_available(); }
};

}  // namespace sparrow
