// SPDX-License-Identifier: Apache-2.0
#include "model/vision/segments.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sparrow {
namespace {

constexpr int kAxes = 3;

}  // namespace

int axis_angles(const VisionConfig& config) {
  const int head_dim = config.hidden_size / config.num_heads;
  return head_dim / kAxes / 2;
}

std::vector<PatchGrid> segments_of(const VisionConfig& config, const PatchGrid& grid) {
  std::vector<PatchGrid> segments;
  for (int t = 0; t < grid.t; t += config.segment_max_frames)
    segments.push_back({std::min(config.segment_max_frames, grid.t - t), grid.h, grid.w});
  return segments;
}

int rotary_angles(const VisionConfig& config) {
  return kAxes * axis_angles(config);
}

std::vector<PatchPlace> patch_places(const VisionConfig& config, const PatchGrid& segment) {
  const int side = config.spatial_merge_size;
  SPARROW_CHECK(segment.h % side == 0 && segment.w % side == 0);
  std::vector<PatchPlace> places;
  places.reserve(static_cast<size_t>(segment.patches()));
  for (int t = 0; t < segment.t; ++t)
    for (int h = 0; h < segment.h; h += side)
      for (int w = 0; w < segment.w; w += side)
        for (int y = 0; y < side; ++y)
          for (int x = 0; x < side; ++x) places.push_back({t, h + y, w + x});
  return places;
}

void axis_rotary(Exec& exec, const VisionConfig& config, const ops::Rotary& out) {
  const int angles = axis_angles(config);
  std::vector<float> inv_freq(static_cast<size_t>(angles));
  for (int i = 0; i < angles; ++i)
    inv_freq[static_cast<size_t>(i)] = static_cast<float>(std::pow(config.rope_theta, -1.0 * i / angles));
  std::vector<int32_t> positions(static_cast<size_t>(out.cos.rows()));
  std::iota(positions.begin(), positions.end(), 0);
  ops::rotary_table(exec, positions, inv_freq, 1.0f, out);
}

void patch_rotary(Exec& exec, const VisionConfig& config, std::span<const PatchGrid> segments,
                  const ops::Rotary& out) {
  // Few places of an axis are many patches'.
  const int angles = axis_angles(config);
  int count = 0;
  for (const PatchGrid& segment : segments) count = std::max({count, segment.t, segment.h, segment.w});
  Scratch::Scope scope(exec.scratch);
  const auto table = [&] {
    return Tensor(scope.take<float>(int64_t{count} * angles), DType::kF32, {count, angles});
  };
  const ops::Rotary axis{table(), table()};
  axis_rotary(exec, config, axis);

  int64_t row = 0;
  for (const PatchGrid& segment : segments)
    for (const PatchPlace& place : patch_places(config, segment)) {
      const auto gather = [&](const Tensor& from, float* to) {
        for (const int32_t at : {place.t, place.h, place.w})
          to = std::copy_n(from.row<float>(at), angles, to);
      };
      gather(axis.cos, out.cos.row<float>(row));
      gather(axis.sin, out.sin.row<float>(row++));
    }
}

}  // namespace sparrow
