// SPDX-License-Identifier: Apache-2.0
// How the vision tower sees a medium: as segments, which know nothing of each other, and as patches that have
// a place in time, height and width inside their segment.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/patch_grid.h"
#include "config/config.h"
#include "ops/ops.h"

namespace sparrow {

// An image is one segment; a clip is cut into runs of so many temporal patches.
std::vector<PatchGrid> segments_of(const VisionConfig& config, const PatchGrid& grid);

// Patches that become one token.
inline int merged_patches(const VisionConfig& config) {
  return config.spatial_merge_size * config.spatial_merge_size;
}
inline int64_t tokens_of(const VisionConfig& config, const PatchGrid& grid) {
  return grid.patches() / merged_patches(config);
}
// Numbers of a patch row: colours x time x height x width.
inline int64_t patch_numbers(const VisionConfig& config) {
  return int64_t{config.num_channels} * config.temporal_patch_size * config.patch_size * config.patch_size;
}

// Pairs of channels that are turned by a place on one axis, and by those on all three.
int axis_angles(const VisionConfig& config);
int rotary_angles(const VisionConfig& config);

// The place of each patch of a segment, in the order of its rows: those of one token follow each other.
struct PatchPlace {
  int32_t t, h, w;
};
std::vector<PatchPlace> patch_places(const VisionConfig& config, const PatchGrid& segment);

// cos and sin of the first places of an axis: `out` is [places, axis_angles].
void axis_rotary(Exec& exec, const VisionConfig& config, const ops::Rotary& out);

// cos and sin of every patch of the segments: `out` is [patches, rotary_angles].
void patch_rotary(Exec& exec, const VisionConfig& config, std::span<const PatchGrid> segments,
                  const ops::Rotary& out);

}  // namespace sparrow
