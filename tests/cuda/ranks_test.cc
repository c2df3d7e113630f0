// SPDX-License-Identifier: Apache-2.0
// The model cut over 2, 4 and 8 ranks against the whole one. All ranks share one GPU and take turns.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/random/synthetic.h"
#include "checkpoint/weights.h"
#include "config/config.h"
#include "engine/ranks/rank_group.h"
#include "engine/sequence_runner.h"
#include "support/golden.h"

namespace sparrow {
namespace {

constexpr int kDecodes = 12;

const ModelConfig& config() {
  static const ModelConfig config =
      parse_config(synthetic_config("small", MatrixFormat::kBF16).value().config_json, "").value();
  return config;
}

using Logits = std::vector<float>;  // of some of the prompt's rows, then of each decode

// Random weights, of which each rank makes its part.
std::unique_ptr<RankGroup> make_ranks(int tp, bool batch_invariant) {
  const RankOptions options{.cache_tokens = 4096,
                            .max_context = 4096,
                            .max_step_tokens = 512,
                            .max_step_sequences = 16,
                            .grid = {.tp = tp},
                            .gpu = {.batch_invariant = batch_invariant, .dummy_seed = 1}};
  const Weights none;
  return tp == 1 ? create_rank_group(config(), none, options).value()
                 : create_ranks_in_turn(config(), none, options).value();
}

// A prompt in chunks of both kinds of exchange, then ids one by one.
Logits run(int tp, std::vector<int> chunks, bool batch_invariant = false) {
  SequenceRunner runner(make_ranks(tp, batch_invariant));
  Logits outcome;
  const auto take_logits = [&] {
    const Tensor logits = runner.logits();
    outcome.insert(outcome.end(), logits.as<float>(), logits.as<float>() + logits.numel());
  };
  Sequence sequence = runner.new_sequence();
  int total = 0;
  for (const int chunk : chunks) total += chunk;
  for (int i = 0; i < total + kDecodes; ++i) sequence.ids.push_back((i * 7919 + 13) % config().vocab_size);
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

class Ranks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Ranks, ::testing::Values(2, 4, 8));

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
  const Logits truth = run(1, kChunks, true);
  const Distance whole = distance(run(1, kChunks), truth), parts = distance(run(GetParam(), kChunks), truth);
  std::printf("%d ranks: median error %.4f, %d of %d sure ids differ; the whole model: %.4f, %d\n",
              GetParam(), parts.median, parts.unequal, parts.sure, whole.median, whole.unequal);
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
  const auto greedy = [&](int tp, bool ahead) {
    const auto ranks = make_ranks(tp, true);
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
}

}  // namespace
}  // namespace sparrow
