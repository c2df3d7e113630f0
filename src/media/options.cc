// SPDX-License-Identifier: Apache-2.0
#include "media/options.h"

#include <algorithm>

#include "base/strf.h"

namespace sparrow {
namespace {

Error outside(const char* field, const std::string& range, const std::string& value) {
  return Error{Errc::kInvalidArgument, strf("{} must be {}, got {}", field, range, value), field};
}

Status check_range(const char* field, const std::optional<int64_t>& value, int64_t least, int64_t most) {
  if (!value || (*value >= least && *value <= most)) return Ok{};
  return outside(field, strf("in [{}, {}]", least, most), std::to_string(*value));
}

// `max_pixels`: what one image or frame may have at most.
Result<SizeRule> size_rule(SizeRule rule, const MediaOptions& options, int64_t max_pixels) {
  constexpr int64_t kOneToken = kTokenSide * kTokenSide;
  SPARROW_TRY(check_range("max_pixels", options.max_pixels, kOneToken, max_pixels));
  rule.max_pixels = options.max_pixels.value_or(std::min(rule.max_pixels, max_pixels));
  SPARROW_TRY(check_range("min_pixels", options.min_pixels, 1, rule.max_pixels));
  rule.min_pixels = options.min_pixels.value_or(std::min(rule.min_pixels, rule.max_pixels));
  if (options.max_long_side_pixel) {
    if (options.min_pixels || options.max_pixels)
      return Error{Errc::kInvalidArgument,
                   "max_long_side_pixel and min_pixels or max_pixels exclude each other",
                   "max_long_side_pixel"};
    SPARROW_TRY(
        check_range("max_long_side_pixel", options.max_long_side_pixel, kTokenSide, max_pixels / kTokenSide));
    rule.max_long_side = static_cast<int>(*options.max_long_side_pixel);
  }
  rule.max_long_side_pixels = max_pixels;
  return rule;
}

}  // namespace

Result<SizeRule> image_rule(const MediaOptions& options, const MediaLimits& limits) {
  if (options.fps)
    return Error{Errc::kInvalidArgument, "fps is an option of videos; this is an image", "fps"};
  return size_rule(SizeRule{}, options, limits.max_image_pixels);
}

Result<VideoRule> video_rule(const MediaOptions& options, const MediaLimits& limits) {
  VideoRule rule{.max_frames = limits.max_frames, .max_pixels = limits.max_video_pixels};
  if (options.fps && !(*options.fps > 0 && *options.fps <= limits.max_fps))
    return outside("fps", strf("above 0 and at most {}", limits.max_fps), strf("{}", *options.fps));
  rule.fps = options.fps.value_or(rule.fps);
  rule.frame = SPARROW_TRY(size_rule(rule.frame, options, limits.max_image_pixels));
  return rule;
}

}  // namespace sparrow
