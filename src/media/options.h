// SPDX-License-Identifier: Apache-2.0
// What a request may say about an image or a video, and what the server allows.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"
#include "media/image.h"
#include "media/resize.h"
#include "media/video.h"

namespace sparrow {

struct MediaOptions {
  std::optional<int64_t> min_pixels, max_pixels;  // of the resized image or frame
  std::optional<int64_t> max_long_side_pixel;     // in their place
  std::optional<double> fps;                      // videos alone
};

struct MediaLimits {
  DecodeLimits decode;
  VideoLimits video;
  int64_t max_image_pixels = 12'845'056;   // resized: 3584 x 3584, 16,384 tokens
  int64_t max_video_pixels = 301'056'000;  // of all its frames
  int max_frames = 768;
  double max_fps = 60;
};

// The rule by which an image or a video is sized. An option outside of the limits is an error that names
// both.
Result<SizeRule> image_rule(const MediaOptions& options, const MediaLimits& limits);
Result<VideoRule> video_rule(const MediaOptions& options, const MediaLimits& limits);

}  // namespace sparrow
