// SPDX-License-Identifier: Apache-2.0
// The model cut over ranks that exchange over NCCL, with a library that stands in for it: each rank is a
// thread with a stream of its own, all on one GPU. Bits against one rank and against ranks that share memory.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/random/synthetic.h"
#include "config/config.h"
#include "engine/ranks/rank_group.h"
#include "engine/sequence_runner.h"

namespace sparrow {
namespace {

std::string stand_in() {
  const char* const folder = std::getenv("SPARROW_FAKE_NCCL_DIR");
  return std::string(folder != nullptr ? folder : SPARROW_FAKE_NCCL_DIR) + "/libmoving_nccl_gpu.so";
}

const ModelConfig& config() {
  static const ModelConfig made = parse_config(synthetic_config("small").value().config_json, "").value();
  return made;
}

using Logits = std::vector<float>;

struct Way {
  bool nccl = false, batch_invariant = true;
  int64_t shared_index_tokens = INT64_MAX;  // never
};

std::unique_ptr<RankGroup> make_ranks(const Grid& grid, const Way& way) {
  const RankOptions options{.cache_tokens = 4096,
                            .max_context = 4096,
                            .max_step_tokens = 512,
                            .max_step_sequences = 16,
                            .grid = grid,
                            .gpu = {.share = way.nccl,
                                    .exchange = {.nccl = way.nccl},
                                    .graphs = !way.nccl,  // the stand-in waits for its threads
                                    .batch_invariant = way.batch_invariant,
                                    .shared_index_tokens = way.shared_index_tokens,
                                    .dummy_seed = 1},
                            .nccl_library = stand_in()};
  const Weights none;
  return grid.world() == 1 ? create_rank_group(config(), none, options).value()
                           : create_ranks_in_turn(config(), none, options).value();
}

// A prompt in chunks of many rows and of few, then ids one by one.
Logits run(const Grid& grid, const Way& way, const std::vector<int>& chunks) {
  SequenceRunner runner(make_ranks(grid, way));
  Sequence sequence = runner.new_sequence();
  std::vector<int> steps = chunks;
  steps.insert(steps.end(), 12, 1);
  int total = 0;
  for (const int step : steps) total += step;
  for (int i = 0; i < total; ++i) sequence.ids.push_back((i * 7919 + 13) % config().vocab_size);
  Logits outcome;
  for (const int step : steps) {
    std::vector<int32_t> rows;
    for (int row = 0; row < step; row += 3) rows.push_back(row);
    runner.run(sequence, step, rows).value();
    const Tensor logits = runner.logits();
    outcome.insert(outcome.end(), logits.as<float>(), logits.as<float>() + logits.numel());
  }
  return outcome;
}

class NcclRankBits : public ::testing::TestWithParam<Grid> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(stand_in())) GTEST_SKIP() << "there is no " << stand_in();
  }
};
INSTANTIATE_TEST_SUITE_P(Grids, NcclRankBits,
                         ::testing::Values(Grid{.tp = 2}, Grid{.tp = 4}, Grid{.tp = 8},
                                           Grid{.tp = 4, .dp = 2}, Grid{.tp = 1, .dp = 2},
                                           Grid{.tp = 2, .dp = 2, .expert_parallel = true},
                                           Grid{.tp = 4, .dp = 2, .expert_parallel = true}));

const std::vector<int> kChunks = {300, 9, 130, 2}, kLongChunks = {512, 512, 512, 512, 300, 9, 130, 2};

TEST_P(NcclRankBits, AreThoseOfRanksThatShareMemory) {
  EXPECT_TRUE(run(GetParam(), {.nccl = true}, kChunks) == run(GetParam(), {}, kChunks));
}

TEST_P(NcclRankBits, AreThoseOfOneRank) {
  if (GetParam().expert_parallel) return;  // summed in another order
  EXPECT_TRUE(run(GetParam(), {.nccl = true}, kChunks) == run({}, {}, kChunks));
}

TEST_P(NcclRankBits, AreThoseOfRanksThatShareMemoryWhereTheyShareTheIndex) {
  EXPECT_TRUE(run(GetParam(), {.nccl = true, .shared_index_tokens = 0}, kLongChunks) ==
              run(GetParam(), {.shared_index_tokens = 0}, kLongChunks));
}

// bf16 parts; algorithms that were measured differ from one start to the next, so only that it goes through.
TEST_P(NcclRankBits, FastStepsRunToo) {
  const auto ranks = make_ranks(GetParam(), {.nccl = true, .batch_invariant = false});
  ASSERT_EQ(ranks->info().warnings.size(), 1u);
  EXPECT_NE(ranks->info().warnings[0].find("NCCL 2.30.4"), std::string::npos);
  EXPECT_FALSE(run(GetParam(), {.nccl = true, .batch_invariant = false}, kChunks).empty());
}

}  // namespace
}  // namespace sparrow
