// SPDX-License-Identifier: Apache-2.0
// What a scheduler is told, and what it has done. Plain data.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "engine/schedule/wait_reason.h"
#include "kv/block_table.h"

namespace sparrow {

struct SchedulerLimits {
  int groups = 1;                // data-parallel ones, each with a cache and a batch of its own
  int max_step_tokens = 512;     // of a group, in one step
  int max_step_sequences = 256;  // of a group, running at the same time
  int64_t max_model_tokens = 0;
  bool prefix_caching = true;
  int min_chunk = kBlockTokens;  // of a prompt, when several share a step
  // A step of priority counts like having arrived this much later, and steps beyond the most count no more:
  // so nobody is overtaken by those who come later than that, which with these is ten minutes.
  std::chrono::milliseconds priority_step{60'000};
  int max_priority = 10;
};

Status validate(const SchedulerLimits& limits);

// Of one group, or of all.
struct GroupStats {
  int running = 0;  // sequences
  int blocks_total = 0, blocks_in_use = 0, blocks_cached = 0, blocks_free = 0;
  int64_t prefix_tokens_queried = 0, prefix_tokens_hit = 0;
  int64_t preemptions = 0;

  GroupStats& operator+=(const GroupStats& other);
};

struct SchedulerStats : GroupStats {
  std::vector<GroupStats> groups;
  int waiting = 0;  // in one queue for all groups, or paused, with or without their blocks
  std::array<int, kNumWaitReasons> waiting_by_reason{};
  int64_t tokens_planned = 0;
  int64_t steps = 0;
};

}  // namespace sparrow
