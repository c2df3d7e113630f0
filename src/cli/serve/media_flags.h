// SPDX-License-Identifier: Apache-2.0
// The flags of `sparrow serve` about images and video.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sparrow::cli {

struct MediaFlags {
  bool language_model_only = false;  // text alone: the vision tower is not read
  int workers = 4;                   // processes that decode pictures
  std::string limit_per_prompt;      // {"image": 8, "video": 1}; empty: that
  std::vector<std::string> allowed_domains;
  std::string allowed_local_path;
  std::string max_file_size = "32M", max_video_size = "64M";
  int64_t max_file_pixels = int64_t{64} << 20;  // of a picture as it comes
  int64_t max_image_pixels = 12'845'056;        // as the model sees it
  int64_t max_video_pixels = 77'070'336;        // likewise, of all frames: 128 of the largest
  int timeout_seconds = 1;                      // that any picture may take, however small
  int max_per_key = 1024;                       // pictures of a key that wait or are being decoded
  double cache_gib = 0.25;                      // of pictures that were decoded before; 0: none
  std::string memory = "4G";                    // of the patches of all requests under way
  int64_t max_step_patches = 0;                 // encoded before a step; 0: what suits the device
};

}  // namespace sparrow::cli
