// SPDX-License-Identifier: Apache-2.0
#include "support/vision/pictures.h"

#include "model/vision/segments.h"
#include "support/golden.h"

namespace sparrow::test {
namespace {

std::vector<float> patch_rows(const VisionConfig& vision, const PatchGrid& grid,
                              std::span<const uint8_t> rgb) {
  constexpr float kMean[] = {0.48145466f, 0.4578275f, 0.40821073f};
  constexpr float kStd[] = {0.26862954f, 0.26130258f, 0.27577711f};
  const int side = vision.patch_size, width = grid.w * side;
  std::vector<float> rows;
  for (const PatchPlace& place : patch_places(vision, grid))
    for (int c = 0; c < 3; ++c)
      for (int t = 0; t < vision.temporal_patch_size; ++t)
        for (int y = 0; y < side; ++y)
          for (int x = 0; x < side; ++x) {
            const int at = (place.h * side + y) * width + place.w * side + x;
            rows.push_back((static_cast<float>(rgb[static_cast<size_t>(at * 3 + c)]) - kMean[c] * 255) /
                           (kStd[c] * 255));
          }
  return rows;
}

}  // namespace

std::filesystem::path vision_dir() {
  return golden_dir() / "vision";
}

std::vector<Picture> golden_pictures(const VisionConfig& vision) {
  const TensorFile images(vision_dir() / "images.golden.safetensors");
  std::vector<Picture> all;
  for (const std::string& name : images.names()) {
    constexpr std::string_view kPixels = ".resized";
    if (!name.ends_with(kPixels)) continue;
    Picture picture{.name = name.substr(0, name.size() - kPixels.size())};
    const std::vector<int32_t> grid = images.ints(picture.name + ".grid_thw");
    picture.grid = {grid[0], grid[1], grid[2]};
    picture.rows = patch_rows(vision, picture.grid, images.bytes(name));
    all.push_back(std::move(picture));
  }
  return all;
}

}  // namespace sparrow::test
