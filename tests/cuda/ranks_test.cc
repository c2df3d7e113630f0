// SPDX-License-Identifier: Apache-2.0
// The model cut over 2, 4 and 8 ranks, in one group and in several, against the whole one. All ranks share
// one GPU and take turns.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "checkpoint/random/synthetic.h"
#include "checkpoint/weights.h"
#include "config/config.h"
#include "engine/ranks/rank_group.h"
#include "engine/sequence_runner.h"
#include "kv/block_table.h"
#include "model/cuda/device_weights_load.h"
#include "model/device_layout.h"
#include "model/sharding.h"
#include "support/golden.h"

namespace sparrow {
namespace {

constexpr int kDecodes = 12;

const ModelConfig& config(MatrixFormat format = MatrixFormat::kBF16) {
  static std::map<MatrixFormat, ModelConfig> configs;
  if (!configs.contains(format))
    configs.emplace(format, parse_config(synthetic_config("small", format).value().config_json, "").value());
  return configs.at(format);
}

using Logits = std::vector<float>;  // of some of the prompt's rows, then of each decode

// Random weights, of which each rank makes its part.
constexpr int64_t kNever = INT64_MAX;  // is the index shared
std::unique_ptr<RankGroup> make_ranks(const Grid& grid, bool batch_invariant,
                                      MatrixFormat format = MatrixFormat::kBF16,
                                      int64_t shared_index_tokens = kNever) {
  const RankOptions options{
      .cache_tokens = 4096,
      .max_context = 4096,
      .max_step_tokens = 512,
      .max_step_sequences = 16,
      .grid = grid,
      .gpu = {
          .batch_invariant = batch_invariant, .shared_index_tokens = shared_index_tokens, .dummy_seed = 1}};
  const Weights none;
  return grid.world() == 1 ? create_rank_group(config(format), none, options).value()
                           : create_ranks_in_turn(config(format), none, options).value();
}

void append_logits(SequenceRunner& runner, Logits& to) {
  const Tensor logits = runner.logits();
  to.insert(to.end(), logits.as<float>(), logits.as<float>() + logits.numel());
}

Sequence make_sequence(SequenceRunner& runner, int length, int seed = 13) {
  Sequence sequence = runner.new_sequence();
  for (int i = 0; i < length; ++i) sequence.ids.push_back((i * 7919 + seed) % config().vocab_size);
  return sequence;
}

// A prompt in chunks of both kinds of exchange, then ids one by one.
Logits run(const Grid& grid, std::vector<int> chunks, bool batch_invariant = false,
           MatrixFormat format = MatrixFormat::kBF16, int64_t shared_index_tokens = kNever) {
  SequenceRunner runner(make_ranks(grid, batch_invariant, format, shared_index_tokens));
  Logits outcome;
  const auto take_logits = [&] { append_logits(runner, outcome); };
  int total = 0;
  for (const int chunk : chunks) total += chunk;
  Sequence sequence = make_sequence(runner, total + kDecodes);
  for (const int chunk : chunks) {
    std::vector<int32_t> rows;
    for (int row = 0; row < chunk; ++row) rows.push_back(row);  // more than are kept at a time
    runner.run(sequence, chunk, rows).value();
    take_logits();
  }
  for (int i = 0; i < kDecodes; ++i) {
    runner.run(sequence, 1, std::vector<int32_t>{0}).value();
    take_logits();
  }
  return outcome;
}

const std::vector<int> kChunks = {300, 9, 130, 2};

class Ranks : public ::testing::TestWithParam<Grid> {};
// Where there are several groups, all but the first have no rows here, and join all the same.
INSTANTIATE_TEST_SUITE_P(Grids, Ranks,
                         ::testing::Values(Grid{.tp = 2}, Grid{.tp = 4}, Grid{.tp = 8},
                                           Grid{.tp = 4, .dp = 2}, Grid{.tp = 1, .dp = 2},
                                           Grid{.tp = 4, .expert_parallel = true},
                                           Grid{.tp = 2, .dp = 2, .expert_parallel = true},
                                           Grid{.tp = 4, .dp = 2, .expert_parallel = true}));

// How far rows of logits are from the truth, and on how many of those ids that lead there by more than 1%
// they do not agree.
struct Distance {
  double median = 0;
  int sure = 0, unequal = 0;
};

Distance distance(const Logits& logits, const Logits& truth) {
  const size_t vocab = config().vocab_size;
  Distance d;
  std::vector<double> errors;
  for (size_t row = 0; row < truth.size() / vocab; ++row) {
    const std::span<const float> want(truth.data() + row * vocab, vocab);
    const std::span<const float> got(logits.data() + row * vocab, vocab);
    errors.push_back(test::relative_error(got, want));
    const auto best = std::max_element(want.begin(), want.end()) - want.begin();
    float second = -INFINITY;
    for (size_t i = 0; i < vocab; ++i)
      if (static_cast<std::ptrdiff_t>(i) != best) second = std::max(second, want[i]);
    if (!(want[best] - second > 0.01f * std::fabs(want[best]))) continue;
    ++d.sure;
    d.unequal += std::max_element(got.begin(), got.end()) - got.begin() != best;
  }
  std::nth_element(errors.begin(), errors.begin() + errors.size() / 2, errors.end());
  d.median = errors[errors.size() / 2];
  return d;
}

// The whole model itself sums in more than one order, and where experts or blocks are chosen at a near-tie
// its rows differ altogether. Its two runs round at the same points; parts of it round elsewhere, so that
// their errors are independent: about 1.4 times as far. Ids that differ are counted, with a count's own
// spread.
TEST_P(Ranks, AgreeWithTheWholeModel) {
  const Logits truth = run({}, kChunks, true);
  const Distance whole = distance(run({}, kChunks), truth), parts = distance(run(GetParam(), kChunks), truth);
  std::printf("%s: median error %.4f, %d of %d sure ids differ; the whole model: %.4f, %d\n",
              describe(GetParam()).c_str(), parts.median, parts.unequal, parts.sure, whole.median,
              whole.unequal);
  EXPECT_GT(parts.sure, 100);
  EXPECT_LE(parts.median, 1.5 * whole.median + 1e-3);
  const double expected = 1.5 * whole.unequal + 1;
  EXPECT_LE(parts.unequal, expected + 3 * std::sqrt(expected));
}

// Without measured choices, which differ from one start to the next.
TEST_P(Ranks, RepeatToTheBit) {
  EXPECT_TRUE(run(GetParam(), kChunks, true) == run(GetParam(), kChunks, true));
}

// Few rows and many are summed in one order: with products that do not depend on the number of rows, chunks
// do not change a bit.
TEST_P(Ranks, ChunksChangeNothingWhereProductsAreBatchInvariant) {
  const Logits a = run(GetParam(), {300, 9, 130, 2}, true), b = run(GetParam(), {441}, true);
  const auto decodes = kDecodes * int64_t{config().vocab_size};
  EXPECT_TRUE(std::equal(a.end() - decodes, a.end(), b.end() - decodes));
}

// The first rank draws, and the others go on with its ids without anybody looking at them.
TEST_P(Ranks, FollowTheIdsOfTheFirst) {
  const auto greedy = [&](const Grid& grid, bool ahead) {
    const auto ranks = make_ranks(grid, true);
    constexpr int kPrompt = 5;
    Batch batch{.cu_seqlens_q = {0, kPrompt},
                .seq_lens = {kPrompt},
                .block_table = {0},
                .max_blocks = 1,
                .logit_rows = {kPrompt - 1}};
    for (int i = 0; i < kPrompt; ++i) {
      batch.ids.push_back(i * 31 + 1);
      batch.positions.push_back(i);
      batch.slots.push_back(i);
    }
    const SamplingParams params{.temperature = 0};
    const std::vector<DrawRequest> draws = {{.row = 0, .sample = {.logits = {}, .params = params}}};
    std::vector<int32_t> ids;
    ranks->run(batch);
    ranks->start_draws(draws);
    for (int i = 0; i < 20; ++i) {
      const int at = kPrompt + i;
      Batch next{.ids = {0},
                 .positions = {at},
                 .slots = {at},
                 .cu_seqlens_q = {0, 1},
                 .seq_lens = {at + 1},
                 .block_table = {0},
                 .max_blocks = 1,
                 .logit_rows = {0}};
      if (ahead) {
        next.drawn_by = {0};
        ranks->run(next);
        ranks->start_draws(draws);
        ids.push_back(ranks->finish_draws()[0].id.value());
      } else {
        ids.push_back(ranks->finish_draws()[0].id.value());
        next.ids = {ids.back()};
        ranks->run(next);
        ranks->start_draws(draws);
      }
    }
    ranks->finish_draws();
    return ids;
  };
  EXPECT_EQ(greedy(GetParam(), true), greedy(GetParam(), false));
  if (has_whole_experts(GetParam())) return;  // summed in another order
  EXPECT_EQ(greedy(GetParam(), true), greedy({}, true));
}

// What ranks hold alike, after steps of many rows, of few and of one.
TEST_P(Ranks, HoldTheSameAsEachOther) {
  if (GetParam().tp == 1) return;
  const auto hashes = [&](int seed) {
    const auto group = make_ranks(GetParam(), false);
    ModelRunner& ranks = *group;
    std::vector<uint64_t> found;
    int done = 0;
    for (const int rows : {200, 5, 1}) {
      Batch batch{
          .cu_seqlens_q = {0, rows}, .seq_lens = {done + rows}, .block_table = {0, 1}, .max_blocks = 2};
      for (int i = 0; i < rows; ++i) {
        batch.ids.push_back(((done + i) * 31 + seed) % config().vocab_size);
        batch.positions.push_back(done + i);
        batch.slots.push_back(done + i);
      }
      batch.logit_rows = {rows - 1};
      ranks.run(batch);
      found.push_back(ranks.replica_hash());
      EXPECT_NE(found.back(), 0u) << rows << " rows";
      done += rows;
    }
    return found;
  };
  const std::vector<uint64_t> a = hashes(1), b = hashes(2);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NE(a[i], b[i]);
}

// Batch-invariant products are summed in parts that do not depend on the number of ranks.
class RankBits : public ::testing::TestWithParam<std::tuple<Grid, MatrixFormat>> {
 protected:
  const Grid grid = std::get<0>(GetParam());
  const MatrixFormat format = std::get<1>(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Grids, RankBits,
                         ::testing::Combine(::testing::Values(Grid{.tp = 2}, Grid{.tp = 4}, Grid{.tp = 8},
                                                              Grid{.tp = 4, .dp = 2}, Grid{.dp = 2}),
                                            ::testing::Values(MatrixFormat::kBF16, MatrixFormat::kMxfp8,
                                                              MatrixFormat::kMxfp4)));

// Equal numbers, and where not, where.
::testing::AssertionResult same_logits(const Logits& got, const Logits& want) {
  if (got.size() != want.size()) return ::testing::AssertionFailure() << got.size() << " numbers";
  const auto at = std::mismatch(got.begin(), got.end(), want.begin());
  if (at.first == got.end()) return ::testing::AssertionSuccess();
  const auto i = at.first - got.begin();
  return ::testing::AssertionFailure()
         << "row " << i / config().vocab_size << ", id " << i % config().vocab_size << ": " << *at.first
         << ", want " << *at.second;
}

// Prompts in chunks and ids one by one, over a cache that they filled: a number of it that differed would
// show.
TEST_P(RankBits, AreThoseOfOneRank) {
  EXPECT_TRUE(same_logits(run(grid, kChunks, true, format), run({}, kChunks, true, format)));
}

// Decodes and chunks of prompts in one step, of few rows and of many.
TEST_P(RankBits, AreThoseOfOneRankInMixedSteps) {
  const auto mixed = [&](const Grid& of) {
    SequenceRunner runner(make_ranks(of, true, format));
    Sequence a = make_sequence(runner, 180), b = make_sequence(runner, 400, 5),
             c = make_sequence(runner, 30, 77);
    Logits outcome;
    runner.run(a, 170, std::vector<int32_t>{169}).value();
    append_logits(runner, outcome);
    for (const auto& [of_b, of_c] : {std::pair{300, 3}, {5, 2}, {1, 1}, {90, 20}, {1, 1}}) {
      const auto slice = [](Sequence& of, int tokens) {
        return StepSlice{.sequence = &of,
                         .first = of.num_computed,
                         .num_tokens = tokens,
                         .sampled = {.first = tokens - 1, .count = 1}};
      };
      const std::vector<StepSlice> slices = {slice(a, 1), slice(b, of_b), slice(c, of_c)};
      runner.run(slices).value();
      append_logits(runner, outcome);
    }
    return outcome;
  };
  EXPECT_TRUE(same_logits(mixed(grid), mixed({})));
}

// A context of more blocks than are selected, whose scoring the ranks share: in prompts, in chunks of few
// rows, in decodes. Without --batch-invariant other kernels, and products of another shape: close.
const std::vector<int> kLongChunks = {512, 512, 512, 512, 300, 9, 130, 2};

TEST_P(RankBits, AreThoseOfOneRankWhereRanksShareTheIndex) {
  EXPECT_TRUE(same_logits(run(grid, kLongChunks, true, format, 0), run({}, kLongChunks, true, format)));
}

TEST_P(Ranks, AgreeWithTheWholeModelWhereTheyShareTheIndex) {
  const Logits truth = run({}, kLongChunks, true);
  const Distance whole = distance(run({}, kLongChunks), truth),
                 parts = distance(run(GetParam(), kLongChunks, false, MatrixFormat::kBF16, 0), truth);
  std::printf("%s, shared index: median error %.4f, %d of %d sure ids differ; the whole model: %.4f, %d\n",
              describe(GetParam()).c_str(), parts.median, parts.unequal, parts.sure, whole.median,
              whole.unequal);
  EXPECT_LE(parts.median, 1.5 * whole.median + 1e-3);
  const double expected = 1.5 * whole.unequal + 1;
  EXPECT_LE(parts.unequal, expected + 3 * std::sqrt(expected));
}

// Two groups with a prompt and decodes of their own, in steps of few rows and of many, against each prompt
// alone: their rows meet in the experts and nowhere else.
class Groups : public ::testing::TestWithParam<Grid> {};
INSTANTIATE_TEST_SUITE_P(Grids, Groups,
                         ::testing::Values(Grid{.tp = 4, .dp = 2}, Grid{.tp = 1, .dp = 2},
                                           Grid{.tp = 2, .dp = 2, .expert_parallel = true}));

struct Prompt {
  int seed, tokens;
};
constexpr int kSteps = 8;  // the prompt, then ids one by one

// One step: rows [first, first + count) of a sequence in each group that has a prompt.
void append_group(Batch& batch, const Prompt& prompt, int first, int count, int first_block, int columns) {
  for (int i = first; i < first + count; ++i) {
    batch.ids.push_back((i * 7919 + prompt.seed) % config().vocab_size);
    batch.positions.push_back(i);
    batch.slots.push_back(int64_t{first_block} * kBlockTokens + i);
  }
  batch.cu_seqlens_q.push_back(batch.num_tokens());
  batch.seq_lens.push_back(first + count);
  for (int b = 0; b < columns; ++b)
    batch.block_table.push_back(b * kBlockTokens < first + count ? first_block + b : -1);
  batch.logit_rows.push_back(batch.num_tokens() - 1);
}

// Of each prompt: the logits of its steps.
std::vector<Logits> run_together(const Grid& grid, const std::vector<Prompt>& prompts) {
  constexpr int kColumns = 4;
  const auto ranks = make_ranks(grid, true);
  std::vector<Logits> outcome(prompts.size());
  for (int step = 0; step < kSteps; ++step) {
    Batch batch{.cu_seqlens_q = {0}, .max_blocks = kColumns};
    if (grid.dp > 1) batch.group_sequences = {0};
    for (size_t g = 0; g < prompts.size(); ++g) {
      const int first = step == 0 ? 0 : prompts[g].tokens + step - 1;
      append_group(batch, prompts[g], first, step == 0 ? prompts[g].tokens : 1,
                   static_cast<int>(g) * ranks->info().num_blocks, kColumns);
      if (grid.dp > 1) batch.group_sequences.push_back(batch.num_sequences());
    }
    ranks->run(batch);
    const Tensor logits = ranks->logits();
    for (size_t g = 0; g < prompts.size(); ++g)
      outcome[g].insert(outcome[g].end(), logits.row<float>(static_cast<int64_t>(g)),
                        logits.row<float>(static_cast<int64_t>(g)) + logits.cols());
  }
  return outcome;
}

TEST_P(Groups, HaveWhatEachWouldHaveAlone) {
  for (const auto& [a, b] : {std::pair{5, 3}, std::pair{200, 4}, std::pair{130, 300}}) {
    const Prompt first{13, a}, second{77, b};
    const std::vector<Logits> together = run_together(GetParam(), {first, second});
    const std::vector<Logits> again = run_together(GetParam(), {first, second});
    EXPECT_TRUE(together == again);
    for (size_t g = 0; g < 2; ++g) {
      const Logits alone = run_together({}, {g == 0 ? first : second})[0];
      const Distance d = distance(together[g], alone);
      std::printf("%s, %d and %d tokens, group %zu: median error %.4f, %d of %d sure ids differ\n",
                  describe(GetParam()).c_str(), a, b, g, d.median, d.unequal, d.sure);
      EXPECT_LT(d.median, 0.1);  // another prompt's rows are as far away as they are large
      EXPECT_LE(d.unequal, 1 + d.sure / 4);
    }
  }
}

// All of them cut the output matrix by columns, whatever becomes of the experts.
TEST(LoadThreads, AreMoreWhereMatricesAreCutByColumns) {
  const auto threads = [](const Grid& grid) {
    return max_load_threads(make_device_layout(config(), grid).value().parts);
  };
  EXPECT_EQ(threads({}), 12);
  EXPECT_EQ(threads({.tp = 2, .rank = 1}), 16);
}

}  // namespace
}  // namespace sparrow
