// SPDX-License-Identifier: Apache-2.0
// Every image and clip of the goldens: decoded and resized bytes by their hash, sizes, grids, tokens, patch
// rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "media/patches.h"
#include "media/vision_golden.h"

namespace sparrow::test {
namespace {

constexpr float kPixelTolerance = 2e-6f;  // one f32 rounding

ImageSize size_of(const std::vector<int64_t>& width_height) {
  return {.height = static_cast<int>(width_height[1]), .width = static_cast<int>(width_height[0])};
}

std::vector<int64_t> grid_list(const PatchGrid& grid) {
  return {grid.t, grid.h, grid.w};
}

void expect_rows(const TensorFile& goldens, const std::string& name, const MediaPatches& patches) {
  const std::vector<int32_t> index = goldens.ints(name + ".patch_index");
  const std::vector<float> values = goldens.floats(name + ".pixel_values");
  ASSERT_EQ(values.size(), index.size() * kPatchValues);
  float worst = 0;
  for (size_t i = 0; i < index.size(); ++i)
    for (int j = 0; j < kPatchValues; ++j)
      worst = std::max(
          worst, std::abs(values[i * kPatchValues + j] - patches.rows[int64_t{index[i]} * kPatchValues + j]));
  EXPECT_LE(worst, kPixelTolerance);
}

TEST(MediaGolden, EveryImageHasTheDecodedAndResizedBytesOfTheReference) {
  const JsonDocument document = manifest();
  const Json images = document.root().at("images").value();
  const TensorFile goldens(vision_dir() / "images.golden.safetensors");
  ASSERT_EQ(images.size(), 38u);
  for (size_t i = 0; i < images.size(); ++i) {
    const std::string name(images.key(i));
    SCOPED_TRACE(name);
    const Json golden = images.member(i);
    const std::string file = vision_file(golden.at("file")->as_string().value());
    const auto image = decode_image(bytes_of(file), DecodeLimits{});
    ASSERT_TRUE(image.ok()) << image.error().message;
    const auto header = read_header(bytes_of(file));
    ASSERT_TRUE(header.ok());
    const ImageSize upright = size_of(int_list(golden.at("upright").value()));
    EXPECT_EQ(upright, (ImageSize{header->height, header->width}));
    EXPECT_EQ(upright, (ImageSize{image->height, image->width}));
    EXPECT_EQ(sha256(image->rgb), golden.at("decoded_sha256")->as_string().value());

    const ImageSize plain = size_of(int_list(golden.at("resized").value()));
    const Image pixels = resized(image.value(), plain);
    EXPECT_EQ(sha256(pixels.rgb), golden.at("resized_sha256")->as_string().value());
    const MediaPatches patches = patches_of_image(pixels);
    EXPECT_EQ(grid_list(patches.grid), int_list(golden.at("grid_thw").value()));
    EXPECT_EQ(tokens_of(patches.grid), golden.at("tokens")->as_int(1, 1 << 20).value());
    expect_rows(goldens, name, patches);

    // Where both clamps of the size rule give another size, that one is ours.
    const auto clamped = golden.find("clamped");
    const ImageSize ours = clamped ? size_of(int_list(clamped->at("resized").value())) : plain;
    EXPECT_EQ(smart_resize(upright.height, upright.width, SizeRule{}).value(), ours);
    if (clamped) {
      EXPECT_EQ(sha256(resized(image.value(), ours).rgb), clamped->at("resized_sha256")->as_string().value());
      EXPECT_EQ(grid_list(grid_of(ours, 1)), int_list(clamped->at("grid_thw").value()));
      EXPECT_EQ(tokens_of(grid_of(ours, 1)), clamped->at("tokens")->as_int(1, 1 << 20).value());
    }
  }
}

TEST(MediaGolden, RefusedImagesAreErrors) {
  const JsonDocument document = manifest();
  const Json refused = document.root().at("refused").value();
  ASSERT_GE(refused.size(), 1u);
  for (size_t i = 0; i < refused.size(); ++i) {
    const Image image = decoded(refused.member(i).at("file")->as_string().value());
    EXPECT_FALSE(smart_resize(image.height, image.width, SizeRule{}).ok()) << refused.key(i);
  }
}

TEST(MediaGolden, SizesAreThoseOfTheRule) {
  const JsonDocument document = manifest();
  const Json cases = document.root().at("smart_resize").value();
  ASSERT_EQ(cases.size(), 73u);
  for (size_t i = 0; i < cases.size(); ++i) {
    const Json sizes = cases.element(i);
    const int height = static_cast<int>(sizes.at("height")->as_int(1, 1 << 20).value());
    const int width = static_cast<int>(sizes.at("width")->as_int(1, 1 << 20).value());
    SCOPED_TRACE(testing::Message() << width << " x " << height);
    const auto expect = [&](const char* key, const SizeRule& rule) {
      const auto golden = sizes.find(key);
      const auto size = smart_resize(height, width, rule);
      ASSERT_EQ(size.ok(), golden.has_value());
      if (golden) {
        EXPECT_EQ((std::vector<int64_t>{size->height, size->width}), int_list(*golden));
      }
    };
    expect("image_clamped", SizeRule{});
    // The videos' column has one clamp only: it says the same where neither side rounds to nothing.
    if (std::min(height, width) > kTokenSide / 2) expect("video", SizeRule{.max_pixels = kMaxVideoPixels});
  }
}

TEST(MediaGolden, EveryClipHasTheFramesGridsAndSegmentsOfTheReference) {
  const JsonDocument document = manifest();
  const Json clips = document.root().at("clips").value();
  const TensorFile goldens(vision_dir() / "clips.golden.safetensors");
  ASSERT_EQ(clips.size(), 4u);
  for (size_t i = 0; i < clips.size(); ++i) {
    const std::string name(clips.key(i));
    SCOPED_TRACE(name);
    const Json golden = clips.member(i);
    const Json files = golden.at("frames").value(), hashes = golden.at("resized_sha256").value();
    const ImageSize size = size_of(int_list(golden.at("resized").value()));
    std::vector<Image> frames;
    for (size_t f = 0; f < files.size(); ++f) {
      const Image frame = decoded(files.element(f).as_string().value());
      EXPECT_EQ(smart_resize(frame.height, frame.width, SizeRule{.max_pixels = kMaxVideoPixels}).value(),
                size);
      frames.push_back(resized(frame, size));
      EXPECT_EQ(sha256(frames.back().rgb), hashes.element(f).as_string().value()) << f;
    }
    const MediaPatches patches = patches_of_frames(frames);
    EXPECT_EQ(grid_list(patches.grid), int_list(golden.at("grid_thw").value()));
    EXPECT_EQ(tokens_of(patches.grid), golden.at("tokens")->as_int(1, 1 << 20).value());
    expect_rows(goldens, name, patches);

    const std::vector<PatchGrid> segments = segments_of(patches.grid);
    const Json expected = golden.at("segments").value();
    ASSERT_EQ(segments.size(), expected.size());
    size_t first_frame = 0, first_row = 0;
    for (size_t s = 0; s < segments.size(); ++s) {
      EXPECT_EQ(grid_list(segments[s]), int_list(expected.element(s)));
      // A segment made by itself has its rows of the whole.
      const size_t count =
          std::min<size_t>(frames.size() - first_frame, size_t(segments[s].t) * kFramesPerPatch);
      const MediaPatches part = patches_of_frames(std::span(frames).subspan(first_frame, count));
      EXPECT_EQ(part.grid, segments[s]);
      EXPECT_TRUE(std::equal(part.rows.begin(), part.rows.end(), patches.rows.begin() + int64_t(first_row)));
      first_frame += count, first_row += part.rows.size();
    }
    EXPECT_EQ(first_row, patches.rows.size());
  }
}

}  // namespace
}  // namespace sparrow::test
