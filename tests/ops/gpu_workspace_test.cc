// SPDX-License-Identifier: Apache-2.0
// The memory of operations on a GPU, which is counted without one.
#include "ops/gpu_workspace.h"

#include <gtest/gtest.h>

namespace sparrow::ops::cuda {
namespace {

TEST(GpuWorkspace, PartsOfManyRowsOfExpertsAreDisjoint) {
  for (const int rows : {1, 65, 8192})
    for (const MoeShape& shape : {MoeShape{6144, 384, 128, 4}, MoeShape{6144, 1536, 0, 0}}) {
      const MoeManyLayout l(shape, rows);
      const int64_t pairs = int64_t{rows} * shape.top_k, places = pairs + rows;
      const struct {
        int64_t offset, bytes;
      } parts[] = {{0, kMoeBarrierBytes},
                   {l.row_at, 4 * places},
                   {l.place_of, 4 * pairs},
                   {l.shares, int64_t{sizeof(Share)} * max_moe_shares(rows, shape.num_experts, shape.top_k)},
                   {l.num_shares, 4},
                   {l.hidden, 2 * places * shape.inter},
                   {l.parts, 2 * places * shape.hidden},
                   {l.bytes, 0}};
      for (size_t i = 0; i + 1 < std::size(parts); ++i) {
        EXPECT_EQ(parts[i].offset % 256, 0);
        EXPECT_LE(parts[i].offset + parts[i].bytes, parts[i + 1].offset) << "part " << i;
      }
      EXPECT_GE(moe_workspace_bytes(shape, rows), l.bytes);
      EXPECT_GE(moe_workspace_bytes(shape, rows), moe_few_workspace_bytes(shape, rows));
    }
}

TEST(GpuWorkspace, OfTheRouterHoldsBothKindsOfLogits) {
  const RouterShape shape{6144, 128, 4};
  EXPECT_EQ(router_parts(6144), 8);
  EXPECT_EQ(router_few_logits(shape, 8192), int64_t{768} * 8 * 128);
  EXPECT_EQ(router_workspace_bytes(shape, 8192), 4 * (int64_t{768} * 8 * 128 + int64_t{8192} * 128));
  for (int rows = 1; rows < 2000; rows += 111)
    EXPECT_GT(router_workspace_bytes(shape, rows + 111), router_workspace_bytes(shape, rows));
}

}  // namespace
}  // namespace sparrow::ops::cuda
