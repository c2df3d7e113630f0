// SPDX-License-Identifier: Apache-2.0
// The size that the model sees an image in, and the resize to it: torchvision's bicubic on bytes, to the bit.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"
#include "media/image.h"

namespace sparrow {

struct ImageSize {
  int height = 0, width = 0;
  int64_t pixels() const { return int64_t{height} * width; }
  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

// A token is a square of this side: 2 x 2 patches.
constexpr int kTokenSide = 28;

constexpr int64_t kMinPixels = 4 * 28 * 28, kMaxImagePixels = 672 * 672, kMaxVideoPixels = 768 * 28 * 28;

struct SizeRule {
  int64_t min_pixels = kMinPixels, max_pixels = kMaxImagePixels;  // of the resized image
  // Another rule in their place: the long side shrinks to this, or else the short side grows to 112.
  std::optional<int> max_long_side;
  int64_t max_long_side_pixels = 12'845'056;  // more is an error there; 3584 x 3584
};

// Both sides are multiples of 28 and at least 28, near the image's ratio, with an area within the rule. An
// image more than 200 times as long as it is wide is an error. Python's arithmetic: doubles, halves rounded
// to even.
Result<ImageSize> smart_resize(int height, int width, const SizeRule& rule);

// Width first, then height, each rounded to bytes; a side that keeps its length is left alone. `out` may not
// be `in`.
void resize_bicubic(const Image& in, ImageSize size, Image& out);

}  // namespace sparrow
