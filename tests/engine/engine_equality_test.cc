// SPDX-License-Identifier: Apache-2.0
// A request's greedy output depends on the request alone. Random scenarios, each against the output of every
// prompt in a run of its own: batched, in any chunks, after prefix hits, after preemption, beside neighbours
// that are cancelled or sample, with slow readers, with n > 1. And the check itself is checked: with one lane
// of the cached blocks spoiled, outputs must differ.
#include <gtest/gtest.h>

#include <cstring>

#include "engine/cpu/cpu_runner.h"
#include "support/engine/equality_scenario.h"

namespace sparrow {
namespace {

using test::Coverage;
using test::EngineModel;
using test::EqualityScenario;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kNumSeeds = 24;
#else
constexpr int kNumSeeds = 320;
#endif
// Selection must matter for a lost index key to show: with two blocks for each head it does from the third
// on.
constexpr int kTopKBlocks = 2;

TEST(EngineEquality, GreedyIdsDependOnTheRequestAlone) {
  Coverage coverage;
  EngineModel yarn("yarn", kTopKBlocks), bf16("bf16", kTopKBlocks);
  for (uint64_t seed = 0; seed < kNumSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    EqualityScenario(seed % 4 == 3 ? bf16 : yarn, seed).run(coverage);
    ASSERT_EQ(coverage.mismatches, 0) << "an output differs from the one of its prompt alone";
    if (testing::Test::HasFailure()) return;
  }
  coverage.print(kNumSeeds);
  EXPECT_GT(coverage.outputs, 3 * kNumSeeds);
  for (const int64_t count : {coverage.chunked, coverage.hits, coverage.hits_inside_a_block, coverage.forked,
                              coverage.forced, coverage.cancelled, coverage.preemptions})
    EXPECT_GT(count, kNumSeeds / 8);
}

// One lane of every cached block: the index keys of the sparse layers, nothing else.
void spoil_index_keys(EngineCore& core) {
  const BlockPool& pool = core.pool();
  const KvCache& cache = dynamic_cast<CpuRunner&>(core.runner()).cache();
  const KvCacheShape& shape = cache.shape();
  for (BlockId block = 0; block < shape.num_blocks; ++block) {
    if (!pool.is_kept(block) || pool.num_owners(block) > 0) continue;
    for (int layer = 0; layer < shape.num_layers(); ++layer)
      if (shape.layer_is_sparse[layer])
        std::memset(static_cast<std::byte*>(cache.index_pages(layer)) + block * shape.index_page_bytes(), 0,
                    shape.index_page_bytes());
  }
}

TEST(EngineEquality, GoesRedWhenIndexKeysOfCachedBlocksAreLost) {
  Coverage coverage;
  EngineModel yarn("yarn", kTopKBlocks);
  for (uint64_t seed = 0; seed < 24; ++seed) EqualityScenario(yarn, seed).run(coverage, spoil_index_keys);
  EXPECT_GT(coverage.mismatches, 0) << "of " << coverage.outputs << " outputs, " << coverage.hits
                                    << " requests with a prefix hit";
}

}  // namespace
}  // namespace sparrow
