// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "base/strf.h"
#include "media/resize.h"

namespace sparrow {
namespace {

constexpr int kMaxRatio = 200, kMinShortSide = 112;

// A side of so many tokens, at least one. std::nearbyint rounds halves to even.
int side(double tokens) {
  return kTokenSide * std::max(1, static_cast<int>(tokens));
}
int rounded(double length) {
  return side(std::nearbyint(length / kTokenSide));
}

Result<ImageSize> resize_long_side(int height, int width, const SizeRule& rule) {
  const int longest = std::max(height, width), shortest = std::min(height, width);
  double scale = 1;
  if (longest > *rule.max_long_side) {
    scale = double(*rule.max_long_side) / longest;
  } else if (shortest < kMinShortSide) {
    scale = double{kMinShortSide} / shortest;
  }
  const ImageSize size{rounded(height * scale), rounded(width * scale)};
  if (size.pixels() > rule.max_long_side_pixels)
    return Error{Errc::kInvalidArgument,
                 strf("an image of {} x {} pixels becomes {} x {}; {} in all is the limit", width, height,
                      size.width, size.height, rule.max_long_side_pixels)};
  return size;
}

}  // namespace

Result<ImageSize> smart_resize(int height, int width, const SizeRule& rule) {
  SPARROW_CHECK(height > 0 && width > 0);
  if (std::max(height, width) > int64_t{kMaxRatio} * std::min(height, width))
    return Error{Errc::kInvalidArgument,
                 strf("an image of {} x {} pixels is too narrow: one side may be at most {} times the other",
                      width, height, kMaxRatio)};
  if (rule.max_long_side) return resize_long_side(height, width, rule);
  const ImageSize nearest{rounded(height), rounded(width)};
  const double area = double(height) * double(width);
  if (nearest.pixels() > rule.max_pixels) {
    const double shrink = std::sqrt(area / double(rule.max_pixels));
    return ImageSize{side(std::floor(height / shrink / kTokenSide)),
                     side(std::floor(width / shrink / kTokenSide))};
  }
  if (nearest.pixels() < rule.min_pixels) {
    const double grow = std::sqrt(double(rule.min_pixels) / area);
    return ImageSize{side(std::ceil(height * grow / kTokenSide)), side(std::ceil(width * grow / kTokenSide))};
  }
  return nearest;
}

}  // namespace sparrow
