// SPDX-License-Identifier: Apache-2.0
// The Hopper index kernels on the device, case by case.
#include <gtest/gtest.h>

#include "msa_gpu/index_case.h"
#include "sm90/tensor_map.h"

namespace msa::sm90 {
namespace {

const std::vector<int> kCorners = {1, 127, 128, 129, 2047, 2048, 2049, 5000};

TEST(IndexScan, DecodeMatchesTheReferenceAtEveryCornerLength) {
  for (const int heads : {1, 2, 4})
    check_index({.name = "decode",
                 .queries = std::vector<int>(8, 1),
                 .seq_lens = kCorners,
                 .heads = heads,
                 .uniform = true});
}

TEST(IndexScan, EveryNumberOfQueriesPerRequestMatchesTheReference) {
  for (int queries = 1; queries <= 16; ++queries)
    for (const int heads : {1, 2, 4})
      if (queries * heads <= 32)
        check_index({.name = "verify",
                     .queries = std::vector<int>(7, queries),
                     .seq_lens = {16, 127, 128, 129, 2047, 2049, 5000},
                     .heads = heads,
                     .uniform = true});
}

TEST(IndexScan, EveryTopKMatchesTheReference) {
  for (int top_k = 1; top_k <= 16; ++top_k)
    check_index({.name = "top k",
                 .queries = {1, 1},
                 .seq_lens = {700, 9000},
                 .selection = {.top_k = top_k},
                 .uniform = true});
}

TEST(IndexScan, BestBlocksInOneColumnMatchTheReference) {
  for (const int len : {4000, 100000, 300000})
    check_index({.name = "column",
                 .queries = {1},
                 .seq_lens = {len},
                 .uniform = true,
                 .extra_blocks = 0,
                 .best_in_one_column = true});
}

TEST(IndexScan, ContextsLongerThanOneRoundOfTheSelectionMatchTheReference) {
  check_index({.name = "1.5 M tokens", .queries = {1}, .seq_lens = {1500000}, .uniform = true});
}

TEST(IndexScan, NearTiesFlipInAtMostOneRowOfTenThousand) {
  check_index({.name = "scan near-ties",
               .queries = std::vector<int>(320, 8),
               .seq_lens = std::vector<int>(320, 2500),
               .heads = 4,
               .integers = false,
               .uniform = true});
}

TEST(IndexScan, ReplaysGiveTheSameBits) {
  check_index({.name = "scan replays",
               .queries = std::vector<int>(8, 1),
               .seq_lens = {131072, 1, 5000, 0, 70000, 129, 20000, 8192},
               .heads = 4,
               .uniform = true,
               .replays = 200});
}

TEST(IndexScan, PaddingRowsSelectNothing) {
  check_index(
      {.name = "padding", .queries = {1, 1, 1, 1}, .seq_lens = {0, 3000, 0, 0}, .heads = 4, .uniform = true});
  check_index({.name = "only padding", .queries = {2, 2}, .seq_lens = {0, 0}, .uniform = true});
}

TEST(IndexScan, ShortExtendsOfDifferentLengthsMatchTheReference) {
  check_index({.name = "extends",
               .queries = {1, 16, 5, 0, 32, 7},
               .seq_lens = {4000, 2500, 5, 0, 20000, 129},
               .heads = 1});
  check_index({.name = "extends of 4 heads", .queries = {8, 1, 3}, .seq_lens = {9000, 1, 4097}, .heads = 4});
}

TEST(IndexScan, EverySelectionRuleIsKept) {
  for (const int top_k : {1, 4, 16})
    for (const int local : {0, 1, 3})
      for (const int init : {0, 2})
        check_index({.name = "rule",
                     .queries = {3, 3, 3},
                     .seq_lens = {3, 300, 5000},
                     .heads = 2,
                     .selection = {top_k, local, init},
                     .uniform = true});
}

TEST(IndexScan, LongContextMatchesTheReference) {
  check_index({.name = "long", .queries = {1, 1}, .seq_lens = {131072, 70001}, .heads = 2, .uniform = true});
  check_index({.name = "long, real numbers",
               .queries = {4},
               .seq_lens = {200000},
               .integers = false,
               .uniform = true});
}

TEST(IndexScan, ManyRequestsMatchTheReference) {
  std::vector<int> lens(300);
  for (int i = 0; i < 300; ++i) lens[i] = i % 7 == 3 ? 0 : 1 + i * 13 % 900;
  check_index({.name = "many", .queries = std::vector<int>(300, 1), .seq_lens = lens, .uniform = true});
}

// The scan starts before the kernel ahead has ended, and that one may write the step's own keys.
TEST(IndexScan, KeysOfThisStepAreReadAfterTheKernelThatWritesThem) {
  for (const hopper::Element type : {hopper::Element::kBF16, hopper::Element::kE4M3})
    for (const int queries : {1, 4, 16}) {
      IndexCase c{.name = "late keys, " + std::to_string(queries) + " queries"};
      c.seq_lens = {4096, 2050, 16, type == hopper::Element::kBF16 ? 40'000 : 10'000, 8191};
      c.queries.assign(c.seq_lens.size(), queries);
      c.selection = {.top_k = 4, .local_blocks = 0, .init_blocks = 0};
      c.key_type = type, c.uniform = true, c.late_keys = true;
      check_index(c);
    }
}

TEST(IndexScan, Fp8KeysMatchTheReference) {
  for (const int heads : {1, 4}) {
    check_index({.name = "fp8",
                 .queries = std::vector<int>(8, 1),
                 .seq_lens = kCorners,
                 .heads = heads,
                 .key_type = hopper::Element::kE4M3,
                 .uniform = true});
    check_index({.name = "fp8 real",
                 .queries = {5, 8},
                 .seq_lens = {40000, 5000},
                 .heads = heads,
                 .integers = false,
                 .key_type = hopper::Element::kE4M3});
  }
}

TEST(IndexTile, ExtendsMatchTheReferenceAtEveryCornerLength) {
  for (const int heads : {1, 2, 4}) {
    check_index({.name = "corner extends",
                 .queries = {1, 100, 128, 129, 40, 200, 2049, 60},
                 .seq_lens = kCorners,
                 .heads = heads});
    check_index(
        {.name = "small tiles", .queries = {1, 27, 28, 29, 30, 31, 32, 9}, .seq_lens = kCorners, .heads = 4});
  }
}

TEST(IndexTile, WholePromptsMatchTheReference) {
  check_index(
      {.name = "prompts", .queries = {700, 1, 33, 0, 256, 2500}, .seq_lens = {700, 1, 33, 0, 256, 2500}});
  check_index({.name = "prompts of 4 heads", .queries = {1500, 65}, .seq_lens = {1500, 65}, .heads = 4});
  check_index({.name = "prompts, real numbers",
               .queries = {3000},
               .seq_lens = {6000},
               .heads = 2,
               .integers = false});
}

TEST(IndexTile, NearTiesFlipInAtMostOneRowOfTenThousand) {
  check_index(
      {.name = "tile near-ties", .queries = {2600}, .seq_lens = {5200}, .heads = 4, .integers = false});
}

TEST(IndexTile, ReplaysGiveTheSameBits) {
  for (const hopper::Element type : {hopper::Element::kBF16, hopper::Element::kE4M3}) {
    check_index({.name = "prompt replays",
                 .queries = {700, 1, 33, 0, 256, 2500},
                 .seq_lens = {700, 1, 33, 0, 256, 2500},
                 .key_type = type,
                 .replays = 200});
    check_index({.name = "replays of 4 heads",
                 .queries = {300, 65},
                 .seq_lens = {20000, 65},
                 .heads = 4,
                 .key_type = type,
                 .replays = 200});
  }
}

TEST(IndexTile, Fp8KeysMatchTheReference) {
  check_index({.name = "fp8 prompts",
               .queries = {700, 1, 33, 0, 256, 2500},
               .seq_lens = {5000, 1, 33, 0, 256, 2500},
               .key_type = hopper::Element::kE4M3});
  check_index({.name = "fp8 small tiles",
               .queries = {1, 27, 28, 29},
               .seq_lens = {1, 127, 2047, 20000},
               .heads = 4,
               .key_type = hopper::Element::kE4M3});
  check_index({.name = "fp8 real",
               .queries = {300},
               .seq_lens = {40000},
               .heads = 2,
               .integers = false,
               .key_type = hopper::Element::kE4M3});
}

TEST(IndexTile, EverySelectionRuleIsKept) {
  for (const int top_k : {1, 4, 16})
    for (const int local : {0, 1, 3})
      for (const int init : {0, 2})
        check_index({.name = "rule",
                     .queries = {70, 300},
                     .seq_lens = {70, 5000},
                     .heads = 1,
                     .selection = {top_k, local, init}});
}

TEST(IndexTile, UniformDecodeOfManyRowsSkipsPadding) {
  check_index(
      {.name = "uniform", .queries = {16, 16, 16}, .seq_lens = {5000, 0, 16}, .heads = 4, .uniform = true});
}

TEST(IndexTile, ContextsOverSeveralWindowsMatchTheReference) {
  check_index({.name = "windows", .queries = {150, 40}, .seq_lens = {270000, 3000}});
  check_index({.name = "windows, small tiles, real numbers",
               .queries = {50},
               .seq_lens = {140000},
               .integers = false});
}

// ---- keys spread over several caches: share by share, the candidates give the selection of one ----

TEST(IndexShares, DecodeMatchesTheReferenceAtEveryCornerLength) {
  for (const int shares : {2, 4, 8})
    for (const hopper::Element type : {hopper::Element::kBF16, hopper::Element::kE4M3})
      check_index({.name = "decode",
                   .queries = std::vector<int>(8, 1),
                   .seq_lens = {1, 127, 128, 129, 2047, 2049, 5000, 20000},
                   .heads = 4,
                   .key_type = type,
                   .uniform = true,
                   .shares = shares});
}

TEST(IndexShares, SeveralQueriesSeeNoKeysBehindTheirOwn) {
  for (const int queries : {2, 4, 8})
    for (const int local : {0, 1})
      check_index({.name = "verify",
                   .queries = std::vector<int>(6, queries),
                   .seq_lens = {127, 129, 2049, 2052, 5000, 9000},
                   .heads = 4,
                   .selection = {.top_k = 4, .local_blocks = local},
                   .uniform = true,
                   .shares = 8});
  check_index({.name = "extends",
               .queries = {8, 1, 0, 5},
               .seq_lens = {4000, 2500, 0, 20001},
               .heads = 4,
               .shares = 4});
}

TEST(IndexShares, EverySelectionRuleIsKept) {
  for (const int top_k : {1, 4, 16})
    for (const int local : {0, 1, 3})
      for (const int init : {0, 2})
        check_index({.name = "rule",
                     .queries = {3, 3, 3},
                     .seq_lens = {3, 300, 5000},
                     .heads = 2,
                     .selection = {top_k, local, init},
                     .uniform = true,
                     .shares = 4});
}

TEST(IndexShares, LongContextsMatchTheReferenceAndRepeat) {
  check_index({.name = "long",
               .queries = {1, 1, 1},
               .seq_lens = {131072, 0, 70001},
               .heads = 4,
               .uniform = true,
               .replays = 50,
               .shares = 8});
  check_index({.name = "real numbers",
               .queries = std::vector<int>(64, 1),
               .seq_lens = std::vector<int>(64, 5000),
               .heads = 4,
               .integers = false,
               .uniform = true,
               .shares = 4});
}

TEST(IndexShares, OfOneCacheMatchTheReference) {
  for (const std::vector<int>& queries : {std::vector<int>{1, 1, 1}, std::vector<int>{200, 3, 40}})
    check_index({.name = "one cache",
                 .queries = queries,
                 .seq_lens = {9000, 2500, 40},
                 .heads = 4,
                 .shares = 8,
                 .all_pages = true});
}

// With all scores kept, with lists, in small tiles, in several windows; rows that see fewer blocks than they
// may select among others, tiles that see no block of a share.
TEST(IndexShares, PromptsMatchTheReference) {
  const struct {
    const char* name;
    std::vector<int> queries, seq_lens;
    int heads;
  } kCases[] = {{"prompt", {2500, 130, 0, 1}, {2500, 130, 0, 1}, 2},
                {"chunks", {64, 500, 33}, {5000, 9000, 40}, 4},
                {"long chunks", {300, 20}, {30000, 17000}, 4},
                {"small tiles", {20, 17}, {30000, 2100}, 4}};
  for (const auto& of : kCases)
    for (const int shares : {2, 8})
      for (const hopper::Element type : {hopper::Element::kBF16, hopper::Element::kE4M3})
        check_index({.name = of.name,
                     .queries = of.queries,
                     .seq_lens = of.seq_lens,
                     .heads = of.heads,
                     .key_type = type,
                     .shares = shares});
  check_index({.name = "windows", .queries = {260}, .seq_lens = {280000}, .heads = 4, .shares = 2});
}

TEST(IndexShares, PromptsKeepEverySelectionRule) {
  for (const int top_k : {1, 4, 16})
    for (const int local : {0, 1, 3})
      for (const int init : {0, 2})
        check_index({.name = "rule",
                     .queries = {300, 40},
                     .seq_lens = {3000, 700},
                     .heads = 2,
                     .selection = {top_k, local, init},
                     .shares = 4});
}

TEST(IndexShares, BestBlocksInOneColumnMatchTheReference) {
  check_index({.name = "column",
               .queries = {1},
               .seq_lens = {300000},
               .heads = 1,
               .uniform = true,
               .extra_blocks = 0,
               .best_in_one_column = true,
               .shares = 2});
}

}  // namespace
}  // namespace msa::sm90
