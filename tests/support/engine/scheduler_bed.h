// SPDX-License-Identifier: Apache-2.0
// A scheduler with a pool and a clock of its own, stepped by hand; the ids it draws do not matter.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/schedule/scheduler.h"

namespace sparrow::test {

// 0, 1, 2, ...; with another last one if given.
inline std::vector<int32_t> iota(int64_t count, int32_t last = -1) {
  std::vector<int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  if (last >= 0) ids.back() = last;
  return ids;
}

struct SchedulerBed {
  explicit SchedulerBed(int num_blocks, SchedulerLimits limits = {.max_model_tokens = 1 << 20})
      : scheduler(num_blocks, limits) {}

  // A prompt like no other.
  std::vector<int32_t> prompt(int64_t num_tokens) {
    std::vector<int32_t> ids(num_tokens, 5);
    ids[0] = next_first_id++;
    return ids;
  }
  // Without a limit the output may have 1,000 tokens, or as many as the pool can hold.
  SequenceId add(SequenceSpec spec) {
    const int64_t longest = int64_t{pool.num_blocks()} * kBlockTokens + 1;
    if (spec.max_total_tokens == 0)
      spec.max_total_tokens = std::min(static_cast<int64_t>(spec.prompt.size()) + 1000, longest);
    const Result<SequenceId> id = scheduler.add(std::move(spec), now);
    EXPECT_TRUE(id.ok()) << id.error().message;
    return id.ok() ? id.value() : 0;
  }
  SequenceId add(int64_t num_tokens, int64_t max_tokens = 0) {
    return add(
        {.prompt = prompt(num_tokens), .max_total_tokens = max_tokens > 0 ? num_tokens + max_tokens : 0});
  }

  const StepPlan& plan() {
    const StepPlan& plan = scheduler.plan_step(now);
    tokens.clear();
    num_samples = 0;
    for (const StepSlice& slice : plan.slices) {
      tokens.emplace_back(slice.sequence->id, slice.num_tokens);
      num_samples += slice.num_draws();
    }
    copies = plan.copies;
    return plan;
  }
  void commit() { scheduler.commit(std::vector<int32_t>(num_samples, 9)); }
  // Tokens that each sequence ran, in the order of the plan.
  std::vector<std::pair<SequenceId, int>> step() {
    plan();
    commit();
    return tokens;
  }
  int tokens_of(SequenceId id) const {
    for (const auto& [planned, count] : tokens)
      if (planned == id) return count;
    return 0;
  }
  // Steps until the sequence has drawn a token; how many it took.
  int steps_to_first_token(SequenceId id, int limit = 10'000) {
    for (int i = 1; i <= limit; ++i) {
      step();
      if (at(id).num_tokens() > at(id).num_prompt_tokens) return i;
    }
    return -1;
  }
  const Sequence& at(SequenceId id) const {
    const Sequence* sequence = scheduler.find(id);
    SPARROW_CHECK(sequence != nullptr);
    return *sequence;
  }
  bool running(SequenceId id) const { return at(id).state == SequenceState::kRunning; }
  WaitReason why_waits(SequenceId id) const { return scheduler.waiting_info(id).value().reason; }

  Scheduler scheduler;
  const BlockPool& pool = scheduler.pool();  // of the first group
  SchedulerTime now{std::chrono::seconds(1000)};
  std::vector<std::pair<SequenceId, int>> tokens;  // of the last plan
  std::vector<BlockCopy> copies;
  int num_samples = 0;
  int32_t next_first_id = 1'000'000;
};

}  // namespace sparrow::test
