// SPDX-License-Identifier: Apache-2.0
// The images of the vision goldens, as rows of patches.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/patch_grid.h"
#include "config/config.h"

namespace sparrow::test {

std::filesystem::path vision_dir();

// The pixels of an image as the goldens have them, and its rows of patches by the definition.
struct Picture {
  std::string name;
  PatchGrid grid;
  std::vector<float> rows;  // [patches, numbers of a patch]
};

// Every image of which the goldens have all pixels.
std::vector<Picture> golden_pictures(const VisionConfig& vision);

}  // namespace sparrow::test
