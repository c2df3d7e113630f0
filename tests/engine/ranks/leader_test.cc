// SPDX-License-Identifier: Apache-2.0
// Rank 0 and those who follow it, with runners that have no model: all ranks make the same calls; and when
// one is gone, fails or has computed something else, all of them end and say which.
#include <gtest/gtest.h>

#include <thread>

#include "comm/thread_comm.h"
#include "engine/ranks/follow.h"
#include "engine/ranks/leader_runner.h"
#include "support/engine/fake_runner.h"

namespace sparrow {
namespace {

using test::FakeRunner;

CallLimits limits_of(const Grid& grid) {
  return {.vocab_size = FakeRunner::kVocab,
          .num_blocks = grid.dp * FakeRunner::kBlocks,
          .num_groups = grid.dp,
          .max_step_tokens = 128,
          .max_step_sequences = 16};
}

Batch one_token(int32_t id, int32_t position = 0, BlockId block = 3) {
  return {.ids = {id},
          .positions = {position},
          .slots = {block * kBlockTokens + position},
          .cu_seqlens_q = {0, 1},
          .seq_lens = {position + 1},
          .block_table = {block},
          .max_blocks = 1,
          .logit_rows = {0}};
}

const SamplingParams kPlain;
const DrawRequest kDraw{.row = 0, .sample = {.logits = {}, .params = kPlain}};

// All ranks of a grid as threads.
class World {
 public:
  explicit World(const Grid& grid,
                 const LeaderOptions& options = {.vocab_size = FakeRunner::kVocab, .compare_every = 1})
      : links_(thread_links(grid.world())) {
    for (int rank = 0; rank < grid.world(); ++rank) {
      Grid here = grid;
      here.rank = rank;
      auto runner = std::make_unique<FakeRunner>(here, /*run_ahead=*/true);
      runners.push_back(runner.get());
      if (rank == 0) {
        leader = std::make_unique<LeaderRunner>(std::move(runner), *links_[0], here, options);
        continue;
      }
      ended.push_back(Ok{});
      followers_.push_back(std::move(runner));
      grids_.push_back(here);
    }
  }
  ~World() { end(); }

  void start() {
    for (size_t i = 0; i < followers_.size(); ++i)
      threads_.emplace_back(
          [this, i] { ended[i] = follow(*followers_[i], *links_[i + 1], grids_[i], limits_of(grids_[i])); });
  }
  void end() {
    leader.reset();
    join();
  }
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  ControlLink& link(int rank) { return *links_[rank]; }

  std::vector<FakeRunner*> runners;  // by rank
  std::unique_ptr<LeaderRunner> leader;
  std::vector<Status> ended;  // of those who follow

 private:
  std::vector<std::unique_ptr<ControlLink>> links_;
  std::vector<std::unique_ptr<FakeRunner>> followers_;
  std::vector<Grid> grids_;
  std::vector<std::thread> threads_;
};

TEST(Leader, EveryRankMakesTheSameCalls) {
  World world({.tp = 4});
  world.start();
  LeaderRunner& leader = *world.leader;
  leader.run(one_token(5), nullptr);
  leader.start_draws({&kDraw, 1});
  // One step ahead, from ids that are not known yet.
  Batch ahead = one_token(0, 1);
  ahead.drawn_by = {0};
  leader.run(ahead, nullptr);
  leader.start_draws({&kDraw, 1});
  const std::vector<Draw> first = leader.finish_draws();
  const std::vector<BlockCopy> copies = {{3, 7}};
  leader.copy_blocks(copies);
  const PromptRow row{0, 17, 2};
  EXPECT_EQ(leader.score({&row, 1}).size(), 1u);
  const std::vector<Draw> second = leader.finish_draws();
  ASSERT_TRUE(first.at(0).id.ok() && second.at(0).id.ok());
  EXPECT_FALSE(leader.failure());
  EXPECT_EQ(leader.rank_times().size(), 4u);
  const std::vector<std::string> mine = world.runners[0]->calls();
  EXPECT_EQ(mine.size(), 8u);
  world.end();
  for (size_t rank = 1; rank < world.runners.size(); ++rank)
    EXPECT_EQ(world.runners[rank]->calls(), mine) << rank;
  for (const Status& status : world.ended) EXPECT_TRUE(status.ok());
}

void one_step(LeaderRunner& leader) {
  leader.run(one_token(5), nullptr);
  leader.start_draws({&kDraw, 1});
  EXPECT_EQ(leader.finish_draws().size(), 1u);
}

TEST(Leader, ARankThatComputesSomethingElseIsNamed) {
  World world({.tp = 4});
  world.runners[2]->spoil_after = 1;
  world.start();
  one_step(*world.leader);
  EXPECT_FALSE(world.leader->failure());
  one_step(*world.leader);
  ASSERT_TRUE(world.leader->failure());
  EXPECT_EQ(world.leader->failure()->message,
            "rank 2: computed something else than rank 0 in one of the last steps");
  world.join();
  for (const Status& status : world.ended) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().message, world.leader->failure()->message);
  }
}

TEST(Leader, HashesAreComparedAsOftenAsAsked) {
  World world({.tp = 2}, {.vocab_size = FakeRunner::kVocab, .compare_every = 5});
  world.runners[1]->spoil_after = 1;
  world.start();
  for (int step = 0; step < 5; ++step) {
    one_step(*world.leader);
    EXPECT_FALSE(world.leader->failure()) << step;
  }
  one_step(*world.leader);
  EXPECT_TRUE(world.leader->failure());
}

TEST(Leader, ARunnerThatFailsEndsAllRanks) {
  for (int bad = 0; bad < 3; ++bad) {
    World world({.tp = 3});
    world.start();
    one_step(*world.leader);
    world.runners[bad]->fail({Errc::kIo, "its GPU fell off the bus"});
    one_step(*world.leader);
    ASSERT_TRUE(world.leader->failure());
    EXPECT_EQ(world.leader->failure()->message, strf("rank {}: its GPU fell off the bus", bad));
    world.end();
    for (const Status& status : world.ended) EXPECT_FALSE(status.ok());
  }
}

// Three groups of two: two sequences, none, one. Ids are drawn by the first rank of each group.
TEST(Leader, GroupsDrawTheirOwnAndAreMergedInOrder) {
  World world({.tp = 2, .dp = 3});
  world.start();
  const Batch batch{.ids = {7, 50, 51, 9},
                    .positions = {130, 4, 5, 3},
                    .slots = {2 * 128 + 2, 4, 5, 140 * 128 + 3},
                    .cu_seqlens_q = {0, 1, 3, 4},
                    .seq_lens = {131, 6, 4},
                    .block_table = {3, 2, 0, -1, 140, -1},
                    .max_blocks = 2,
                    .logit_rows = {0, 1, 2, 3},
                    .group_sequences = {0, 2, 2, 3}};
  world.leader->run(batch, nullptr);
  const PromptRow rows[] = {{1, 11, 0}, {3, 13, 0}};
  const auto scores = world.leader->score(rows);
  EXPECT_EQ(scores.at(0)->token.id, 11);
  EXPECT_EQ(scores.at(1)->token.id, 13);
  const SamplingParams seeded{.seed = 5};
  std::vector<DrawRequest> draws;
  for (const int row : {0, 2, 2, 3})
    draws.push_back({.row = row, .sample = {.logits = {}, .params = seeded}});
  world.leader->start_draws(draws);
  const std::vector<Draw> drawn = world.leader->finish_draws();
  ASSERT_FALSE(world.leader->failure()) << world.leader->failure()->message;
  ASSERT_EQ(drawn.size(), draws.size());
  for (size_t i = 0; i < draws.size(); ++i)
    EXPECT_EQ(drawn[i].id.value(), FakeRunner::drawn_from(draws[i], i < 3 ? 0 : 2)) << i;
}

TEST(Leader, ALinkThatFailsIsSeenWithoutACall) {
  World world({.tp = 2});
  world.start();
  one_step(*world.leader);
  world.link(1).fail(1, "no sign of life for 5 s");
  ASSERT_TRUE(world.leader->failure());
  EXPECT_EQ(world.leader->failure()->message, "rank 1: no sign of life for 5 s");
  // Calls still return.
  one_step(*world.leader);
  EXPECT_TRUE(world.leader->score({}).empty());
}

TEST(Follow, AMessageThatMakesNoSenseEndsAllRanks) {
  World world({.tp = 2});
  world.start();
  ASSERT_TRUE(world.link(0).send(Bytes(3)).ok());
  world.join();
  ASSERT_FALSE(world.ended[0].ok());
  EXPECT_EQ(world.ended[0].error().message, "rank 1: a message of rank 0 is cut off");
  EXPECT_EQ(world.leader->failure()->message, world.ended[0].error().message);
}

TEST(Follow, IdsOfAStepThatNeverRanAreRefused) {
  World world({.tp = 2});
  world.start();
  CallWriter writer(/*draws_elsewhere=*/false);
  ASSERT_TRUE(world.link(0).send(writer.plain(Call::kFinishDraws)).ok());
  world.join();
  EXPECT_FALSE(world.ended[0].ok());
}

}  // namespace
}  // namespace sparrow
