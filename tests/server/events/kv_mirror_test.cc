// SPDX-License-Identifier: Apache-2.0
#include "server/events/kv_mirror.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>

#include "support/engine/scheduler_simulation.h"

namespace sparrow {
namespace {

using Block = std::tuple<std::optional<Digest>, std::vector<int32_t>, std::string>;

std::map<Digest, Block> blocks_of(const std::vector<CacheEvent>& events) {
  std::map<Digest, Block> blocks;
  for (const CacheEvent& event : events) {
    for (size_t i = 0; i < event.digests.size(); ++i) {
      const std::optional<Digest> parent = i == 0 ? event.parent : event.digests[i - 1];
      EXPECT_TRUE(!parent || blocks.contains(*parent)) << "before the block that it comes after";
      const auto ids = event.ids.begin() + static_cast<int64_t>(i) * kBlockTokens;
      blocks[event.digests[i]] = {parent, {ids, ids + kBlockTokens}, event.extras[i].salt};
    }
  }
  return blocks;
}

// Evictions, preemptions, cancelled and forked outputs, steps that run ahead, two groups; and a listener that
// cannot always take what it is told.
TEST(KvMirror, HoldsWhatTheSchedulersCachesHold) {
  constexpr int kGroups = 2;
  KvMirror mirrors[kGroups];
  bool complete[kGroups] = {};
  std::mt19937_64 random(3);
  int64_t num_refused = 0, num_compared = 0;
  test::SimulationOptions options{.seed = 9, .num_requests = 2000, .num_blocks = 64};
  options.limits.groups = kGroups;
  options.limits.max_step_tokens = 256;
  options.limits.max_step_sequences = 32;
  options.cache_events = [&](int group, const std::vector<CacheEvent>& events) {
    complete[group] = random() % 50 != 0;
    num_refused += !complete[group];
    if (complete[group]) mirrors[group].apply(events);
    return complete[group];
  };
  options.after_step = [&](const Scheduler& scheduler, int64_t step) {
    for (int group = 0; group < kGroups; ++group) {
      if (!complete[group]) continue;
      ASSERT_EQ(static_cast<int>(mirrors[group].num_blocks()), scheduler.cache(group).num_known());
      if (step % 16 != 0) continue;
      std::vector<CacheEvent> all;
      scheduler.cache(group).list(all);
      ASSERT_EQ(blocks_of(mirrors[group].list()), blocks_of(all)) << "step " << step;
      ++num_compared;
    }
  };
  const test::SimulationOutcome outcome = simulate_scheduler(options);
  EXPECT_GT(outcome.stats.preemptions, 0);
  EXPECT_GT(num_refused, 10);
  EXPECT_GT(num_compared, 50);
}

}  // namespace
}  // namespace sparrow
