// SPDX-License-Identifier: Apache-2.0
// Pixels -> patch rows: what the vision tower reads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/patch_grid.h"
#include "media/image.h"
#include "media/resize.h"

namespace sparrow {

constexpr int kPatchSide = 14, kFramesPerPatch = 2;
constexpr int kPatchValues = 3 * kFramesPerPatch * kPatchSide * kPatchSide;  // channel, frame, y, x
constexpr int kSegmentPatches = 4;  // temporal patches that attend to each other

struct MediaPatches {
  PatchGrid grid;
  // [patches, kPatchValues], normalised. The four patches of a token follow each other; tokens go along rows,
  // frames outermost.
  std::vector<float> rows;
};

// The grid of resized frames: an odd one out counts twice.
PatchGrid grid_of(ImageSize size, int64_t frames);
inline int64_t tokens_of(const PatchGrid& grid) {
  return grid.patches() / 4;
}

// Frames of one size, whose sides are multiples of kTokenSide. An image stands for both frames of its patch.
// Any run of frames that begins at an even one gives the rows that it has in the whole.
void fill_patch_rows(std::span<const Image> frames, std::span<float> rows);
MediaPatches patches_of_image(const Image& image);
MediaPatches patches_of_frames(std::span<const Image> frames);

// The runs of at most kSegmentPatches temporal patches that are encoded by themselves; time begins at 0 in
// each.
std::vector<PatchGrid> segments_of(const PatchGrid& grid);

}  // namespace sparrow
