// SPDX-License-Identifier: Apache-2.0
#include "media/patches.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

namespace sparrow {
namespace {

using ChannelTable = std::array<float, 256>;

// (x - 255 mean) / (255 std) in f32 for every byte: the division is done once.
std::array<ChannelTable, 3> normalised_values() {
  constexpr float kMean[] = {0.48145466f, 0.4578275f, 0.40821073f},
                  kStd[] = {0.26862954f, 0.26130258f, 0.27577711f};
  std::array<ChannelTable, 3> tables;
  for (int c = 0; c < 3; ++c)
    for (int x = 0; x < 256; ++x)
      tables[c][x] = (static_cast<float>(x) - kMean[c] * 255.0f) / (kStd[c] * 255.0f);
  return tables;
}

// One frame's half of the patch at `pixels`: [channel, y, x], with the other frame's half between the
// channels.
void write_half(const uint8_t* pixels, int64_t stride, float* row) {
  static const std::array<ChannelTable, 3> values = normalised_values();
  constexpr int kPlane = kPatchSide * kPatchSide;
  for (int y = 0; y < kPatchSide; ++y, pixels += stride, row += kPatchSide) {
    for (int x = 0; x < kPatchSide; ++x)
      for (int c = 0; c < 3; ++c) row[c * kFramesPerPatch * kPlane + x] = values[c][pixels[3 * x + c]];
  }
}

// The image's values stand in both halves.
void repeat_half(float* row) {
  constexpr int kPlane = kPatchSide * kPatchSide;
  for (int c = 0; c < 3; ++c, row += kFramesPerPatch * kPlane)
    std::memcpy(row + kPlane, row, sizeof(float) * kPlane);
}

}  // namespace

PatchGrid grid_of(ImageSize size, int64_t frames) {
  return {.t = static_cast<int>((frames + kFramesPerPatch - 1) / kFramesPerPatch),
          .h = size.height / kPatchSide,
          .w = size.width / kPatchSide};
}

void fill_patch_rows(std::span<const Image> frames, std::span<float> rows) {
  SPARROW_CHECK(!frames.empty());
  const int width = frames[0].width, height = frames[0].height;
  SPARROW_CHECK(width % kTokenSide == 0 && height % kTokenSide == 0);
  const PatchGrid grid = grid_of({height, width}, static_cast<int64_t>(frames.size()));
  SPARROW_CHECK_EQ(static_cast<int64_t>(rows.size()), grid.patches() * kPatchValues);
  const int64_t stride = int64_t{3} * width;
  float* row = rows.data();
  for (size_t t = 0; t < frames.size(); t += kFramesPerPatch) {
    const Image& first = frames[t];
    const Image* second = t + 1 < frames.size() ? &frames[t + 1] : nullptr;
    SPARROW_CHECK(first.width == width && first.height == height);
    SPARROW_CHECK(!second || (second->width == width && second->height == height));
    for (int token_y = 0; token_y < grid.h; token_y += 2)
      for (int token_x = 0; token_x < grid.w; token_x += 2)
        for (int patch = 0; patch < 4; ++patch, row += kPatchValues) {
          const int64_t at =
              (token_y + patch / 2) * kPatchSide * stride + (token_x + patch % 2) * kPatchSide * 3;
          write_half(first.rgb.data() + at, stride, row);
          if (second) {
            write_half(second->rgb.data() + at, stride, row + kPatchSide * kPatchSide);
          } else {
            repeat_half(row);
          }
        }
  }
}

MediaPatches patches_of_frames(std::span<const Image> frames) {
  SPARROW_CHECK(!frames.empty());
  MediaPatches patches{.grid =
                           grid_of({frames[0].height, frames[0].width}, static_cast<int64_t>(frames.size()))};
  patches.rows.resize(static_cast<size_t>(patches.grid.patches() * kPatchValues));
  fill_patch_rows(frames, patches.rows);
  return patches;
}

MediaPatches patches_of_image(const Image& image) {
  return patches_of_frames({&image, 1});
}

std::vector<PatchGrid> segments_of(const PatchGrid& grid) {
  std::vector<PatchGrid> segments;
  for (int t = 0; t < grid.t; t += kSegmentPatches)
    segments.push_back({.t = std::min(kSegmentPatches, grid.t - t), .h = grid.h, .w = grid.w});
  return segments;
}

}  // namespace sparrow
