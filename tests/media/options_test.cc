// SPDX-License-Identifier: Apache-2.0
// Options of a request within the server's limits, and a file's whole way.
#include "media/options.h"

#include <gtest/gtest.h>

#include "media/encoders.h"
#include "media/prepare.h"
#include "media/vision_golden.h"

namespace sparrow::test {
namespace {

TEST(MediaOptions, AreHonouredWithinTheLimits) {
  const SizeRule plain = image_rule({}, {}).value();
  EXPECT_EQ(plain.min_pixels, kMinPixels);
  EXPECT_EQ(plain.max_pixels, kMaxImagePixels);
  const SizeRule asked = image_rule({.min_pixels = 10'000, .max_pixels = 2'000'000}, {}).value();
  EXPECT_EQ(smart_resize(1080, 1920, asked).value(), (ImageSize{1036, 1876}));
  EXPECT_EQ(smart_resize(28, 28, asked).value(), (ImageSize{112, 112}));
  const SizeRule long_side = image_rule({.max_long_side_pixel = 1008}, {}).value();
  EXPECT_EQ(smart_resize(1080, 1920, long_side).value(), (ImageSize{560, 1008}));
  const VideoRule video = video_rule({.fps = 2.5}, {}).value();
  EXPECT_EQ(video.fps, 2.5);
  EXPECT_EQ(video.frame.max_pixels, kMaxVideoPixels);
  // A server's limit below the default is the default there.
  EXPECT_EQ(image_rule({}, {.max_image_pixels = 100'000})->max_pixels, 100'000);
}

TEST(MediaOptions, OutsideOfTheLimitsAreErrorsThatNameTheField) {
  const auto field = [](const MediaOptions& options, bool video = false) {
    if (!video) return image_rule(options, {}).error().field;
    return video_rule(options, {}).error().field;
  };
  EXPECT_EQ(field({.max_pixels = 12'845'057}), "max_pixels");
  EXPECT_EQ(field({.max_pixels = 783}), "max_pixels");
  EXPECT_EQ(field({.min_pixels = 0}), "min_pixels");
  EXPECT_EQ(field({.min_pixels = 5000, .max_pixels = 4000}), "min_pixels");
  EXPECT_EQ(field({.max_long_side_pixel = 27}), "max_long_side_pixel");
  EXPECT_EQ(field({.max_pixels = 4000, .max_long_side_pixel = 500}), "max_long_side_pixel");
  EXPECT_EQ(field({.fps = 1}), "fps");
  EXPECT_EQ(field({.fps = 0}, true), "fps");
  EXPECT_EQ(field({.fps = 61}, true), "fps");
  const auto error = image_rule({.max_pixels = int64_t{1} << 40}, {}).error();
  EXPECT_EQ(error.message, "max_pixels must be in [784, 12845056], got 1099511627776");
}

TEST(PrepareImage, ItsSizeIsKnownFromTheHeader) {
  const std::string file = vision_file("images/exif6.jpg");
  const ImageSize size = planned_size(bytes_of(file), {}, {}).value();
  const auto patches = prepare_image(bytes_of(file), {}, {});
  ASSERT_TRUE(patches.ok());
  EXPECT_EQ(patches->grid, grid_of(size, 1));
  EXPECT_EQ(patches->rows, patches_of_image(resized(decoded("images/exif6.jpg"), size)).rows);
  EXPECT_FALSE(prepare_image(bytes_of(vision_file("images/ratio.png")), {}, {}).ok());
}

}  // namespace
}  // namespace sparrow::test
