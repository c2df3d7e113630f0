// SPDX-License-Identifier: Apache-2.0
// What the attention within segments is cut into: up to 128 rows of a segment and one head are an item. Host
// arithmetic only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/math.h"

namespace sparrow::ops::cuda {

// Segments begin at multiples of so many rows.
inline constexpr int kSegmentAlignment = 8;

struct SegmentRows {
  int begin, end;
};

struct SegmentItem {
  int32_t row, rows;   // the first, and how many of 64 or 128 there may be
  int32_t begin, end;  // of the segment
  int32_t head;
};

inline constexpr int kItemRows = 128, kHalfItemRows = 64;

constexpr int64_t max_segment_items(int64_t rows, int64_t segments, int heads) {
  return (rows / kHalfItemRows + segments) * heads;
}

// Those of long segments first. Where the last round would leave half of the SMs without an item, its items
// are cut into halves: a warpgroup that has the SM for itself is faster. That changes no bit.
inline std::vector<SegmentItem> segment_items(std::span<const SegmentRows> segments, int heads, int sms) {
  std::vector<SegmentItem> items;
  for (const SegmentRows& segment : segments)
    for (int head = 0; head < heads; ++head)
      for (int row = segment.begin; row < segment.end; row += kItemRows)
        items.push_back({row, std::min(kItemRows, segment.end - row), segment.begin, segment.end, head});
  std::stable_sort(items.begin(), items.end(), [](const SegmentItem& a, const SegmentItem& b) {
    return a.end - a.begin > b.end - b.begin;
  });
  const size_t rest = items.size() % static_cast<size_t>(sms);
  if (2 * rest > static_cast<size_t>(sms)) return items;
  const size_t whole = items.size() - rest;
  for (size_t i = whole; i < whole + rest; ++i) {
    if (items[i].rows <= kHalfItemRows) continue;
    SegmentItem second = items[i];
    second.row += kHalfItemRows, second.rows -= kHalfItemRows;
    items[i].rows = kHalfItemRows;
    items.push_back(second);
  }
  return items;
}

}  // namespace sparrow::ops::cuda
