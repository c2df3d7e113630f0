// SPDX-License-Identifier: Apache-2.0
// What a GPU's vision tower is laid out by, without a GPU.
#include "model/vision/tower_layout.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>

#include "support/m3_config.h"

namespace sparrow {
namespace {

using ops::cuda::SegmentItem;
using ops::cuda::SegmentRows;

TEST(SegmentItems, HaveEveryRowOfEveryHeadOnce) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    const int heads = 1 + static_cast<int>(random() % 4), sms = 1 + static_cast<int>(random() % 140);
    std::vector<SegmentRows> segments;
    int total = 0;
    for (size_t i = 0; i < 1 + random() % 6; ++i) {
      const int rows = 4 * (1 + static_cast<int>(random() % 200));
      segments.push_back({total, total + rows});
      total += round_up(rows, ops::cuda::kSegmentAlignment);
    }
    const std::vector<SegmentItem> items = ops::cuda::segment_items(segments, heads, sms);
    EXPECT_LE(static_cast<int64_t>(items.size()),
              ops::cuda::max_segment_items(total, static_cast<int64_t>(segments.size()), heads));
    std::map<std::tuple<int, int>, int> seen;  // by row and head
    for (const SegmentItem& item : items) {
      EXPECT_GT(item.rows, 0);
      EXPECT_LE(item.rows, ops::cuda::kItemRows);
      EXPECT_EQ((item.row - item.begin) % ops::cuda::kHalfItemRows, 0);
      EXPECT_LE(item.row + item.rows, item.end);
      for (int row = item.row; row < item.row + item.rows; ++row) ++seen[{row, item.head}];
    }
    for (const SegmentRows& segment : segments)
      for (int row = segment.begin; row < segment.end; ++row)
        for (int head = 0; head < heads; ++head) ASSERT_EQ((seen[{row, head}]), 1) << row << " " << head;
  }
}

// A short last round is shared by twice as many.
TEST(SegmentItems, OfAShortLastRoundAreHalves) {
  const std::vector<SegmentRows> one = {{0, 2304}};
  EXPECT_EQ(ops::cuda::segment_items(one, 16, 132).size(), 288u + 24);
  EXPECT_EQ(ops::cuda::segment_items(one, 16, 144).size(), 288u);  // two whole rounds
  EXPECT_EQ(ops::cuda::segment_items(one, 16, 200).size(), 288u + 88);
  EXPECT_EQ(ops::cuda::segment_items(one, 16, 170).size(), 288u);  // 118 of 170 are no short round
}

TEST(TowerShapes, ThatKernelsDoNotTakeAreNamed) {
  const ModelConfig m3 = parse_config(test::m3_config_json(), "").value();
  EXPECT_TRUE(check_tower_shapes(m3).ok());
  const auto refused = [&](auto change) {
    ModelConfig config = m3;
    change(*config.vision);
    const Status status = check_tower_shapes(config);
    return status.ok() ? "" : status.error().message;
  };
  EXPECT_EQ(
      refused([](VisionConfig& v) { v.num_heads = 20; }),
      "vision num_attention_heads 20: the GPU kernels take heads of 80 channels; the CPU can run this tower");
  EXPECT_EQ(refused([](VisionConfig& v) { v.hidden_size = 80 * (v.num_heads = 32); }),
            "vision hidden_size 2560: the GPU kernels take at most 2048; the CPU can run this tower");
  EXPECT_EQ(refused([](VisionConfig& v) { v.intermediate_size = 5124; }),
            "vision intermediate_size 5124: the GPU kernels take multiples of 8; the CPU can run this tower");
}

// The longest segment that can be kept fits, whatever its number of patches is rounded up to.
TEST(TowerLimits, HoldTheLongestSegmentThatCanBeKept) {
  const VisionConfig vision = *parse_config(test::m3_config_json(), "").value().vision;
  for (const int64_t tokens : {1, 2, 160, 8191, 8192}) {
    const TowerLimits limits = tower_limits(vision, tokens);
    EXPECT_GE(limits.max_rows, 4 * tokens);
    EXPECT_EQ(limits.max_rows % ops::cuda::kSegmentAlignment, 0);
    EXPECT_LE(limits.wide_rows(), limits.max_rows);
    EXPECT_EQ(limits.staged_rows() % ops::cuda::kSegmentAlignment, 0);
    EXPECT_EQ(limits.wide_rows() % merged_patches(vision), 0);
  }
}

}  // namespace
}  // namespace sparrow
