// SPDX-License-Identifier: Apache-2.0
// The model on several ranks: logits, hidden states, selections, cached pages and drawn ids have the bits of
// one rank, and what ranks hold alike is alike.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <optional>
#include <random>

#include "checkpoint/checkpoint.h"
#include "checkpoint/mx/quantise.h"
#include "checkpoint/random/synthetic.h"
#include "model/ledger.h"
#include "model/sharding.h"
#include "support/engine/thread_ranks.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

using test::ThreadRanks;

constexpr int kSequences = 4, kBlocksOfSequence = 3;

// What a sequence does in one step: so many tokens, of which the last may be drawn from.
struct Slice {
  int sequence, tokens;
  bool draws = true;
};
using Step = std::vector<Slice>;
// Chunks, prompts beside outputs, and steps in which one half of the sequences has nothing to do.
const std::array<Step, 6> kSteps = {{{{0, 200, false}, {1, 5}},
                                     {{0, 100}, {1, 1}, {2, 150}},
                                     {{0, 1}, {1, 1}, {2, 1}, {3, 128, false}},
                                     {{0, 1}, {1, 1}, {2, 1}, {3, 1}},
                                     {{2, 1}, {3, 1}},
                                     {{0, 1}, {1, 1}, {2, 1}, {3, 1}}}};

struct StepResult {
  std::vector<float> logits;      // of all groups
  std::vector<int32_t> ids;       // drawn
  std::vector<Capture> captures;  // by rank
  std::vector<uint64_t> hashes;   // by rank
};

// Plays kSteps on a grid. Sequences of the second half are the second group's.
class Play {
 public:
  Play(const ModelConfig& config, const Weights& weights, const Grid& grid)
      : config_(config),
        ranks_(config, weights, int64_t{kSequences} * kBlocksOfSequence * kBlockTokens / grid.dp, grid) {
    std::mt19937 random(5);
    const int blocks_of_half = kSequences / 2 * kBlocksOfSequence;
    for (int half = 0; half < 2; ++half) {
      std::vector<int32_t> blocks(blocks_of_half);
      for (int i = 0; i < blocks_of_half; ++i) blocks[i] = half * blocks_of_half + i;
      std::shuffle(blocks.begin(), blocks.end(), random);
      blocks_.insert(blocks_.end(), blocks.begin(), blocks.end());
    }
    for (std::vector<int32_t>& ids : ids_)
      for (int i = 0; i < 300; ++i) ids.push_back(static_cast<int32_t>(random() % config.vocab_size));
    for (const Step& step : kSteps) run(step);
  }

  ThreadRanks& ranks() { return ranks_; }
  const std::vector<StepResult>& results() const { return results_; }
  const std::vector<Batch>& batches() const { return batches_; }

 private:
  // Ids drawn in the step before are known to the leaders' ranks alone; older ones are told.
  Batch make_batch(const Step& step) {
    Batch batch{.cu_seqlens_q = {0}, .max_blocks = kBlocksOfSequence};
    std::array<int, 3> first = {};  // sequence of each half, and the end
    for (const Slice& slice : step) {
      for (int i = 0; i < slice.tokens; ++i) {
        const int position = computed_[slice.sequence]++;
        const bool is_drawn = i == 0 && drawn_by_[slice.sequence] >= 0;
        batch.drawn_by.push_back(is_drawn ? drawn_by_[slice.sequence] : -1);
        batch.ids.push_back(is_drawn ? 0 : ids_[slice.sequence][position]);
        batch.positions.push_back(position);
        const int32_t block = blocks_[slice.sequence * kBlocksOfSequence + position / kBlockTokens];
        batch.slots.push_back(int64_t{block} * kBlockTokens + position % kBlockTokens);
      }
      batch.cu_seqlens_q.push_back(batch.num_tokens());
      batch.seq_lens.push_back(computed_[slice.sequence]);
      const auto* blocks = &blocks_[slice.sequence * kBlocksOfSequence];
      batch.block_table.insert(batch.block_table.end(), blocks, blocks + kBlocksOfSequence);
      if (slice.draws) batch.logit_rows.push_back(batch.num_tokens() - 1);
      if (slice.sequence < kSequences / 2) ++first[1];
    }
    first[2] = batch.num_sequences();
    if (ranks_.grid().dp == 2) batch.group_sequences.assign(first.begin(), first.end());
    return batch;
  }

  void run(const Step& step) {
    const Batch batch = batches_.emplace_back(make_batch(step));
    StepResult& result = results_.emplace_back();
    result.captures.resize(ranks_.grid().world());
    result.hashes.resize(ranks_.grid().world());
    const SamplingParams greedy{.temperature = 0};
    std::vector<DrawRequest> draws;
    for (size_t row = 0; row < batch.logit_rows.size(); ++row)
      draws.push_back({.row = static_cast<int64_t>(row), .sample = {.logits = {}, .params = greedy}});
    std::vector<std::vector<Draw>> drawn(ranks_.grid().world());
    ranks_.on_all([&](int rank, CpuRunner& runner) {
      runner.run(batch, &result.captures[rank]);
      runner.start_draws(draws);
      drawn[rank] = runner.finish_draws();
      result.hashes[rank] = runner.replica_hash();
    });
    for (int group = 0; group < ranks_.grid().dp; ++group) {
      const Tensor logits = ranks_.leader(group).logits();
      result.logits.insert(result.logits.end(), logits.as<float>(), logits.as<float>() + logits.numel());
      for (const Draw& draw : drawn[group * ranks_.grid().tp]) result.ids.push_back(draw.id.value());
    }
    ASSERT_EQ(result.ids.size(), draws.size());
    drawn_by_.fill(-1);
    int next = 0;
    for (const Slice& slice : step) {
      if (!slice.draws) continue;
      ids_[slice.sequence].resize(computed_[slice.sequence]);
      ids_[slice.sequence].push_back(result.ids[next]);
      drawn_by_[slice.sequence] = next++;
    }
  }

  const ModelConfig& config_;
  ThreadRanks ranks_;
  std::vector<int32_t> blocks_;
  std::array<std::vector<int32_t>, kSequences> ids_;
  std::array<int, kSequences> computed_ = {};
  std::array<int, kSequences> drawn_by_ = {-1, -1, -1, -1};
  std::vector<Batch> batches_;
  std::vector<StepResult> results_;
};

template <typename T>
bool same_bits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// A rank's captured rows are its group's rows of the one rank's, and its heads of their selections.
void compare_captures(const ModelConfig& config, const Grid& grid, const Batch& batch, const Capture& got,
                      const Capture& want) {
  const int group = grid.group();
  const int64_t first = batch.group_sequences.empty() ? 0 : group_begin(batch, group).logit;
  const int64_t rows = batch.group_sequences.empty() ? static_cast<int64_t>(batch.logit_rows.size())
                                                     : group_begin(batch, group + 1).logit - first;
  if (rows == 0) return;
  ASSERT_EQ(got.hidden.size(), want.hidden.size());
  const int64_t hidden = config.hidden_size;
  for (size_t layer = 0; layer < want.hidden.size(); ++layer)
    ASSERT_TRUE(same_bits<float>(got.hidden[layer],
                                 std::span(want.hidden[layer]).subspan(first * hidden, rows * hidden)))
        << "hidden states before layer " << layer;
  const int64_t mine = int64_t{kv_heads_per_rank(config, grid)} * config.top_k_blocks;
  const int64_t all = int64_t{config.num_kv_heads} * config.top_k_blocks;
  for (size_t layer = 0; layer < want.selected_blocks.size(); ++layer) {
    if (want.selected_blocks[layer].empty()) continue;
    for (int64_t row = 0; row < rows; ++row)
      ASSERT_TRUE(same_bits<int32_t>(
          std::span(got.selected_blocks[layer]).subspan(row * mine, mine),
          std::span(want.selected_blocks[layer])
              .subspan((first + row) * all + first_kv_head(config, grid) * config.top_k_blocks, mine)))
          << "selection of layer " << layer;
  }
}

// A rank's pages are its heads of its group's blocks, and the index keys of every tp-th block.
void compare_pages(const ModelConfig& config, const Grid& grid, const KvCache& got, const KvCache& want) {
  const size_t tile = got.shape().kv_page_bytes() / got.shape().kv_heads;
  const auto bytes = [](void* pages, size_t at, size_t count) {
    return std::span(static_cast<const std::byte*>(pages) + at, count);
  };
  for (int layer = 0; layer < config.num_layers; ++layer)
    for (int block = 0; block < got.shape().num_blocks; ++block) {
      const int of_all = grid.group() * got.shape().num_blocks + block;
      for (int head = 0; head < got.shape().kv_heads; ++head)
        ASSERT_TRUE(same_bits(
            bytes(got.kv_pages(layer), block * got.shape().kv_page_bytes() + head * tile, tile),
            bytes(want.kv_pages(layer),
                  of_all * want.shape().kv_page_bytes() + (first_kv_head(config, grid) + head) * tile, tile)))
            << "layer " << layer << " block " << block << " head " << head;
      if (!config.layer_is_sparse[layer] || block % grid.tp != grid.tp_rank()) continue;
      const size_t page = got.shape().index_page_bytes();
      ASSERT_TRUE(same_bits(bytes(got.index_pages(layer), block / grid.tp * page, page),
                            bytes(want.index_pages(layer), of_all * page, page)))
          << "index keys of layer " << layer << " block " << block;
    }
}

void expect_same_pages(const ModelConfig& config, Play& got, Play& want) {
  Grid grid = got.ranks().grid();
  for (grid.rank = 0; grid.rank < grid.world(); ++grid.rank)
    compare_pages(config, grid, got.ranks().at(grid.rank).cache(), want.ranks().at(0).cache());
}

void expect_same(const ModelConfig& config, Play& got, Play& want) {
  for (size_t step = 0; step < kSteps.size(); ++step) {
    SCOPED_TRACE(testing::Message() << describe(got.ranks().grid()) << ", step " << step);
    const StepResult &a = got.results()[step], &b = want.results()[step];
    ASSERT_TRUE(same_bits<float>(a.logits, b.logits)) << "logits";
    ASSERT_EQ(a.ids, b.ids);
    Grid grid = got.ranks().grid();
    for (grid.rank = 0; grid.rank < grid.world(); ++grid.rank) {
      SCOPED_TRACE(testing::Message() << "rank " << grid.rank);
      compare_captures(config, grid, got.batches()[step], a.captures[grid.rank], b.captures[0]);
    }
  }
  expect_same_pages(config, got, want);
}

// What all ranks of a group hold alike has one hash, step by step.
void expect_replicas(Play& play) {
  const Grid& grid = play.ranks().grid();
  for (const StepResult& result : play.results())
    for (int rank = 0; rank < grid.world(); ++rank)
      EXPECT_EQ(result.hashes[rank], result.hashes[rank / grid.tp * grid.tp])
          << describe(grid) << ", rank " << rank;
}

// Selection matters from the third block on.
ModelConfig with_few_blocks(ModelConfig config) {
  config.top_k_blocks = 2;
  return config;
}

// Every grid of up to 8 ranks that the model can be cut into and whose experts are cut by channel.
int play_all_grids(const ModelConfig& config, const Weights& weights) {
  Play alone(config, weights, {});
  int played = 0;
  for (const Grid& grid : {Grid{.tp = 2}, Grid{.tp = 4}, Grid{.tp = 8}, Grid{.dp = 2}, Grid{.tp = 2, .dp = 2},
                           Grid{.tp = 4, .dp = 2}}) {
    if (!validate(config, grid).ok()) continue;
    ++played;
    Play play(config, weights, grid);
    expect_same(config, play, alone);
    expect_replicas(play);
    if (testing::Test::HasFailure()) break;
  }
  return played;
}

Checkpoint random_checkpoint(MatrixFormat format, const std::string& overrides = "") {
  const test::TempDir dir;
  std::ofstream(dir.path() / "config.json") << synthetic_config("tiny", format).value().config_json;
  return Checkpoint::random(dir.path(), 3, {.overrides = overrides}).value();
}

// Quantised channels come in groups of 32: with these, eight ranks have one each.
constexpr const char* kWide = R"({"text_config": {"intermediate_size": 256, "dense_intermediate_size": 512,
                                                  "shared_intermediate_size": 256}})";

TEST(Ranks, HaveTheBitsOfOne) {
  // 64 channels of an expert: parts of 8. Two KV heads: ranks share them.
  const Checkpoint tiny = random_checkpoint(MatrixFormat::kBF16);
  EXPECT_EQ(play_all_grids(with_few_blocks(tiny.config()), tiny.weights()), 6);
}

TEST(Ranks, HaveTheBitsOfOneInEveryFormat) {
  for (const MatrixFormat format : {MatrixFormat::kF32, MatrixFormat::kMxfp8, MatrixFormat::kMxfp4}) {
    SCOPED_TRACE(name_of(format));
    const Checkpoint wide = random_checkpoint(format, kWide);
    EXPECT_EQ(play_all_grids(with_few_blocks(wide.config()), wide.weights()), 6);
  }
}

TEST(Ranks, HaveTheBitsOfOneOnTheGoldenModels) {
  for (const char* golden : {"f32", "bf16", "yarn", "mxfp8", "mxfp4"}) {
    SCOPED_TRACE(golden);
    const Checkpoint checkpoint = Checkpoint::open(test::golden_dir() / golden).value();
    EXPECT_GE(play_all_grids(with_few_blocks(checkpoint.config()), checkpoint.weights()), 3);
  }
}

// Tensors called otherwise than the released ones, and a list that leaves some of them out.
TEST(Ranks, HaveTheBitsOfOneInOtherSpellings) {
  const test::TempDir dir;
  const auto made = quantise_checkpoint(
      {.from = test::golden_dir() / "bf16", .to = dir.path() / "q", .format = QuantFormat::kMxfp4});
  ASSERT_TRUE(made.ok()) << made.error().message;
  const Checkpoint checkpoint = Checkpoint::open(dir.path() / "q").value();
  EXPECT_GE(play_all_grids(with_few_blocks(checkpoint.config()), checkpoint.weights()), 3);
}

// A block's copy may have its index keys on another rank than the block.
TEST(Ranks, CopyBlocksAsOneDoes) {
  const Checkpoint tiny = random_checkpoint(MatrixFormat::kBF16);
  for (const Grid& grid : {Grid{.tp = 2}, Grid{.tp = 4}, Grid{.tp = 8}, Grid{.tp = 2, .dp = 2}}) {
    SCOPED_TRACE(describe(grid));
    Play alone(tiny.config(), tiny.weights(), {}), play(tiny.config(), tiny.weights(), grid);
    // To the same rank and to others, of a copy, and over what was just copied from.
    const std::array<BlockCopy, 7> copies = {{{0, 4}, {1, 2}, {4, 3}, {2, 1}, {5, 0}, {6, 11}, {11, 8}}};
    for (Play* each : {&alone, &play})
      each->ranks().on_all([&](int, CpuRunner& runner) { runner.copy_blocks(copies); });
    expect_same_pages(tiny.config(), play, alone);
  }
}

TEST(Ranks, KeepWhatTheLedgerCounts) {
  const Checkpoint tiny = random_checkpoint(MatrixFormat::kBF16);
  const ModelConfig& config = tiny.config();
  for (const Grid& grid : {Grid{}, Grid{.tp = 2}, Grid{.tp = 8}, Grid{.tp = 2, .dp = 2}}) {
    SCOPED_TRACE(describe(grid));
    ThreadRanks ranks(config, tiny.weights(), 16 * kBlockTokens, grid);
    const Ledger ledger = make_ledger(config, grid, config.dtype, config.dtype, /*vision=*/false,
                                      index_ranks(grid, Device::kCpu));
    for (int rank = 0; rank < grid.world(); ++rank)
      EXPECT_EQ(static_cast<int64_t>(ranks.at(rank).info().cache_bytes), 16 * ledger.block_bytes());
  }
}

// Whole experts on a rank add up in another order: close to one rank's, and the same whenever it is run.
TEST(Ranks, WithWholeExpertsAreCloseAndRepeat) {
  const Checkpoint wide = random_checkpoint(MatrixFormat::kF32, kWide);
  const ModelConfig config = with_few_blocks(wide.config());
  Play alone(config, wide.weights(), {});
  for (const Grid& grid :
       {Grid{.tp = 2, .expert_parallel = true}, Grid{.tp = 8, .expert_parallel = true},
        Grid{.dp = 2, .expert_parallel = true}, Grid{.tp = 2, .dp = 2, .expert_parallel = true}}) {
    SCOPED_TRACE(describe(grid));
    Play play(config, wide.weights(), grid), again(config, wide.weights(), grid);
    expect_replicas(play);
    for (size_t step = 0; step < kSteps.size(); ++step) {
      const StepResult& result = play.results()[step];
      EXPECT_TRUE(same_bits<float>(result.logits, again.results()[step].logits));
      EXPECT_LT(test::relative_error(result.logits, alone.results()[step].logits), 1e-5);
      EXPECT_EQ(result.ids, alone.results()[step].ids);
    }
  }
}

// Those who wait for a rank that gives up come back, and know that what they have is of no use.
TEST(Ranks, ThatLoseOneReturnAndSaySo) {
  const Checkpoint tiny = random_checkpoint(MatrixFormat::kBF16);
  ThreadRanks ranks(tiny.config(), tiny.weights(), kBlockTokens, {.tp = 4});
  const Batch batch{.ids = {1, 2},
                    .positions = {0, 1},
                    .slots = {0, 1},
                    .cu_seqlens_q = {0, 2},
                    .seq_lens = {2},
                    .block_table = {0},
                    .max_blocks = 1,
                    .logit_rows = {1}};
  ranks.on_all([&](int, CpuRunner& runner) { runner.run(batch, nullptr); });
  for (int rank = 0; rank < 4; ++rank) EXPECT_FALSE(ranks.at(rank).failure());
  ranks.on_all([&](int rank, CpuRunner& runner) {
    if (rank == 2) return ranks.comms(rank).world->abort();
    runner.run(batch, nullptr);
  });
  for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(ranks.at(rank).failure());
}

}  // namespace
}  // namespace sparrow
