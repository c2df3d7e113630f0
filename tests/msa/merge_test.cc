// SPDX-License-Identifier: Apache-2.0
// Index keys spread over several caches: the candidates of the shares merge to what one cache gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "support/msa_cases.h"

namespace msa::testing {
namespace {

constexpr int kShareCounts[] = {1, 2, 4, 8};

std::vector<Isa> all_isas() {
  std::vector<Isa> isas = fast_isas();
  isas.insert(isas.begin(), Isa::kScalar);
  return isas;
}

// The pages of one share, one after the other, and none of the others'.
std::vector<uint8_t> pages_of(const IndexShare& share, const Step& step, const Sequences& sequences) {
  const int64_t page_bytes = kBlock * kHeadDim * sequences.element_bytes();
  const auto* all = static_cast<const uint8_t*>(sequences.index_params(step, {}, nullptr).k_pages);
  const int num_pages = *std::ranges::max_element(step.block_table) + 1;
  std::vector<uint8_t> pages;
  for (int page = share.share; page < num_pages; page += share.count)
    pages.insert(pages.end(), all + page * page_bytes, all + (page + 1) * page_bytes);
  return pages;
}

std::vector<Candidate> run_share(const Sequences& sequences, const Step& step, const Selection& selection,
                                 const IndexShare& share, Isa isa, int workers = 1) {
  IndexParams params = sequences.index_params(step, selection, nullptr);
  const std::vector<uint8_t> pages = pages_of(share, step, sequences);
  std::vector<Candidate> candidates(
      int64_t{step.plan.total_queries()} * params.heads.kv_heads * selection.top_k, {1e30f, -77});
  params.k_pages = pages.data();
  params.share = share;
  params.candidates = candidates.data();
  const Workers team = thread_workers(&workers);
  std::vector<uint8_t> workspace(index_workspace_bytes(step.plan, params, isa, team), 0xff);
  index(step.plan, params, isa, team, workspace.data());
  return candidates;
}

// Selections of `heads` heads from `first` on, by way of shares.
std::vector<int32_t> run_shares(const Sequences& sequences, const Step& step, const Selection& selection,
                                int num_shares, Isa isa, int first, int heads, int workers = 1) {
  std::vector<Candidate> all;
  for (int share = 0; share < num_shares; ++share) {
    const auto mine = run_share(sequences, step, selection, {share, num_shares}, isa, workers);
    all.insert(all.end(), mine.begin(), mine.end());
  }
  std::vector<int32_t> selected(int64_t{step.plan.total_queries()} * heads * selection.top_k, -77);
  const Workers team = thread_workers(&workers);
  merge(step.plan,
        {.selection = selection,
         .num_shares = num_shares,
         .index_heads = sequences.options().heads.kv_heads,
         .first_head = first,
         .kv_heads = heads,
         .candidates = all.data(),
         .selected = selected.data()},
        team);
  return selected;
}

void expect_shares_change_nothing(const Sequences& sequences, const Step& step, const Selection& selection,
                                  int workers = 1) {
  const int heads = sequences.options().heads.kv_heads;
  for (const Isa isa : all_isas()) {
    const std::vector<int32_t> expected = run_index(sequences, step, selection, isa);
    for (const int count : kShareCounts)
      ASSERT_EQ(run_shares(sequences, step, selection, count, isa, 0, heads, workers), expected)
          << name_of(isa) << ", " << count << " shares, top_k " << selection.top_k << " local "
          << selection.local_blocks << " init " << selection.init_blocks;
  }
}

TEST(Shares, SelectWhatOneCacheSelectsForEveryForcingAndLength) {
  // From one block, where most shares have none, to more than any share keeps.
  for (const int length : {1, 129, 1000, 2049, 5000})
    for (const Values values : {Values::kIntegers, Values::kUniform}) {
      Sequences sequences({.heads = {4, 2}, .lengths = {length}, .values = values, .seed = 11});
      const int count = std::min(length, 2);
      const Step step = sequences.step({{0, length - count, count}});
      for (const int top_k : {1, 4, 16})
        for (const int local : {0, 1, 3, 16})
          for (const int init : {0, 2}) {
            if (local > top_k) continue;
            ASSERT_NO_FATAL_FAILURE(expect_shares_change_nothing(
                sequences, step, {.top_k = top_k, .local_blocks = local, .init_blocks = init}));
          }
    }
}

TEST(Shares, SelectWhatOneCacheSelectsForManyQueriesAndRequests) {
  for (const Type type : {Type::kBF16, Type::kF32}) {
    Sequences sequences({.type = type,
                         .heads = {4, 4},
                         .lengths = {700, 1, 1500, 200},
                         .values = Values::kIntegers,
                         .seed = 12});
    const Step step = sequences.step({{0, 660, 40}, {1, 0, 1}, {2, 1499, 1}, {3, 0, 200}, {2, 0, 0}});
    for (const int workers : {1, 3})
      ASSERT_NO_FATAL_FAILURE(expect_shares_change_nothing(sequences, step, {.top_k = 3}, workers));
  }
}

TEST(Shares, TiesAndNaNsFallAsInOneCache) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  // Scores by block, again and again: nothing but ties, zeros of both signs, and what is below every number.
  for (const std::vector<float>& pattern : {std::vector<float>{4},
                                            {0.0f, -0.0f},
                                            {kNaN},
                                            {kNaN, -9, kNaN, 3},
                                            {-kInfinity, kNaN, 1},
                                            {7, 2, 7, 2, 2}}) {
    constexpr int kBlocks = 40;
    for (const uint32_t page_seed : {1, 2, 3}) {
      Sequences sequences({.heads = {1, 1},
                           .lengths = {kBlocks * kBlock},
                           .values = Values::kIntegers,
                           .page_seed = page_seed});
      for (int token = 0; token < kBlocks * kBlock; ++token)
        for (int channel = 0; channel < kHeadDim; ++channel)
          sequences.set_index_key(0, token, channel,
                                  channel == 0 ? pattern[token / kBlock % pattern.size()] : 0);
      for (int channel = 0; channel < kHeadDim; ++channel)
        sequences.set_index_query(0, kBlocks * kBlock - 1, 0, channel, channel == 0 ? 1 : 0);
      const Step step = sequences.step({{0, kBlocks * kBlock - 1, 1}});
      for (const Selection& selection : {Selection{.top_k = 16}, Selection{.top_k = 3, .local_blocks = 0},
                                         Selection{.top_k = 5, .local_blocks = 2, .init_blocks = 1}})
        ASSERT_NO_FATAL_FAILURE(expect_shares_change_nothing(sequences, step, selection));
    }
  }
}

TEST(Shares, CandidatesAreTheReferences) {
  Sequences sequences({.heads = {2, 2}, .lengths = {4000, 300}, .values = Values::kIntegers, .seed = 13});
  const Step step = sequences.step({{0, 3990, 10}, {1, 299, 1}});
  for (const Selection& selection : {Selection{.top_k = 4}, Selection{.top_k = 16, .init_blocks = 1},
                                     Selection{.top_k = 2, .local_blocks = 2}})
    for (const int count : kShareCounts)
      for (int share = 0; share < count; ++share) {
        const auto expected = run_share(sequences, step, selection, {share, count}, Isa::kScalar);
        for (const Isa isa : fast_isas())
          ASSERT_TRUE(run_share(sequences, step, selection, {share, count}, isa) == expected)
              << name_of(isa) << ", share " << share << " of " << count;
      }
}

// A rank asks for the selections of its own heads only.
TEST(Shares, AnyHeadsCanBeMerged) {
  Sequences sequences({.heads = {4, 4}, .lengths = {3000}, .values = Values::kIntegers, .seed = 14});
  const Step step = sequences.step({{0, 2995, 5}});
  const Selection selection = {.top_k = 4};
  const std::vector<int32_t> all = run_index(sequences, step, selection, Isa::kScalar);
  for (const int first : {0, 1, 2}) {
    const auto part = run_shares(sequences, step, selection, 4, Isa::kScalar, first, 2);
    for (int row = 0; row < 5; ++row)
      EXPECT_TRUE(std::equal(part.begin() + row * 8, part.begin() + (row + 1) * 8,
                             all.begin() + row * 16 + first * 4))
          << "row " << row << " head " << first;
  }
}

}  // namespace
}  // namespace msa::testing
