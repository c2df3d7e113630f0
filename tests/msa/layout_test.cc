// SPDX-License-Identifier: Apache-2.0
// The layouts of the plans for Hopper, which need no device: parts are aligned, follow each other without
// overlap, and grow with the step.
#include <gtest/gtest.h>

#include <vector>

#include "msa/layout/attend_layout.h"
#include "msa/layout/dense_layout.h"
#include "msa/layout/index_layout.h"
#include "msa/layout/plan_layout.h"

namespace msa::sm90 {
namespace {

struct Part {
  int64_t offset, bytes;
};

// In the order they lie in.
void expect_disjoint(const std::vector<Part>& parts, int64_t end) {
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i].offset % 256, 0) << "part " << i;
    EXPECT_LE(parts[i].offset + parts[i].bytes, i + 1 < parts.size() ? parts[i + 1].offset : end)
        << "part " << i;
  }
}

TEST(MsaLayout, OfTheIndexScheduleIsDisjoint) {
  for (const int requests : {1, 7, 256})
    for (const int queries : {64, 1000, 8192})
      for (const int blocks : {1, 129, 8192}) {
        const IndexShape shape{requests, queries, queries, blocks, 4, 132, false};
        const IndexScheduleLayout s = index_schedule_layout(shape);
        const int64_t windows = s.windows, tiles = s.tile_cap, ctas = s.ctas;
        EXPECT_GE(int64_t{s.windows} * s.window_blocks, blocks);
        expect_disjoint({{int64_t(s.request_tile), 4 * requests},
                         {int64_t(s.tiles), 16 * tiles},
                         {int64_t(s.prefix), 4 * windows * (tiles + 1)},
                         {int64_t(s.pieces), 32 * windows * (tiles + ctas)},
                         {int64_t(s.cta_pieces), 8 * windows * ctas},
                         {int64_t(s.tile_ctas), 8 * windows * tiles}},
                        int64_t(s.bytes));
      }
}

TEST(MsaLayout, OfPrefillAttentionIsDisjoint) {
  for (const int queries : {1, 500, 8192})
    for (const int kv_heads : {1, 4})
      for (const int group : {4, 16})
        for (const int blocks : {16, 600, 8192}) {
          constexpr int kRequests = 9, kTopK = 16;
          const auto w = attend_prefill_workspace(queries, kRequests, kv_heads, group, kTopK, blocks);
          const int64_t units = int64_t{w.num_tiles} * kv_heads, windows = int64_t{w.num_windows} * kv_heads;
          const int64_t pairs = windows * w.window * kTopK,
                        rows = int64_t{queries} * kv_heads * kTopK * group;
          EXPECT_GE(w.num_windows * w.window, queries);
          expect_disjoint({{w.lists, 16},
                           {w.tiles, 16 * units},
                           {w.union_size, 4 * units},
                           {w.union_units, 32 * units},
                           {w.outer_units, 16 * units},
                           {w.union_blocks, 16 * units * w.tile_queries * kTopK},
                           {w.num_items, 4 * windows},
                           {w.next_item, 4 * windows},
                           {w.items, 16 * pairs},
                           {w.entries, 4 * pairs},
                           {w.counts, 4 * int64_t{queries} * kv_heads},
                           {w.sums, 8 * rows},
                           {w.partial, 256 * rows}},
                          w.bytes);
        }
}

TEST(MsaLayout, OfDenseAttentionIsDisjoint) {
  for (const int queries : {1, 500, 8192})
    for (const int blocks : {1, 9, 8192}) {
      constexpr int kRequests = 9, kHeads = 4, kGroup = 16;
      const auto w = dense::tile_workspace(queries, kRequests, blocks, kHeads, kGroup);
      expect_disjoint({{w.tile_start, 4 * (kRequests + 2)},
                       {w.tile_request, 4 * w.max_tiles},
                       {w.tile_blocks, 4 * w.max_tiles},
                       {w.items, 32 * (w.max_tiles * kHeads + w.max_partials)},
                       {w.merges, 16 * w.max_partials},
                       {w.sums, 8 * w.max_partials * dense::kTileRows},
                       {w.partial, 4 * w.max_partials * dense::kTileRows * dense::kDim}},
                      w.bytes);
      EXPECT_LE(w.bytes, dense_workspace_bytes(queries, kRequests, blocks, kHeads, kGroup));
    }
}

TEST(MsaLayout, OfAPlanIsDisjointAndGrows) {
  const std::vector<float> frequencies(32);
  const auto config = [&](int requests, int queries, int blocks) {
    return gpu::PlanConfig{.heads = {16, 1},
                           .selection = {16, 1, 0},
                           .max_requests = requests,
                           .max_queries = queries,
                           .max_blocks = blocks,
                           .rotary_dim = 64,
                           .inv_freq = frequencies};
  };
  size_t last = 0;
  for (const int size : {1, 16, 64, 256}) {
    const gpu::PlanConfig c = config(size, 32 * size, 32 * size);
    const PlanLayout l = plan_layout(c, 132);
    expect_disjoint({{int64_t(l.schedules[0]), int64_t(l.bytes.index_schedule)},
                     {int64_t(l.schedules[1]), int64_t(l.bytes.index_schedule)},
                     {int64_t(l.index), int64_t(l.bytes.index)},
                     {int64_t(l.decode), int64_t(l.bytes.decode)},
                     {int64_t(l.attend), int64_t(l.bytes.attend)},
                     {int64_t(l.rotary), int64_t{8} * 32 * c.max_queries}},
                    int64_t(l.total));
    EXPECT_GT(l.total, last);
    last = l.total;
    int64_t bytes = 0;
    ASSERT_TRUE(gpu::workspace_bytes(c, 132, &bytes).ok());
    EXPECT_EQ(bytes, int64_t(l.total));
  }
  int64_t bytes = 0;
  EXPECT_EQ(gpu::workspace_bytes(config(0, 1, 1), 132, &bytes).message,
            "max_requests must be in [1, 4096], got 0");
}

}  // namespace
}  // namespace msa::sm90
