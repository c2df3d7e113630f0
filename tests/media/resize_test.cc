// SPDX-License-Identifier: Apache-2.0
// The resize: instruction sets give the same bits, and the size rule keeps its promises for any size.
#include "media/resize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "media/encoders.h"
#include "media/resize/passes.h"

namespace sparrow::test {
namespace {

struct Lengths {
  int in, out;
};

// Up, down, odd, tiny, with one tap group and with many; each axis in turn beside a few lengths of the other.
constexpr Lengths kLengths[] = {{1, 28},   {2, 28},    {3, 28},     {5, 56},   {13, 28},   {27, 28},
                                {29, 28},  {31, 56},   {97, 84},    {100, 28}, {129, 140}, {257, 252},
                                {300, 28}, {1080, 56}, {1920, 140}, {4001, 28}};

TEST(Resize, Avx2HasTheBitsOfTheReference) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this machine has no AVX2";
  for (const auto [in, out] : kLengths) {
    const AxisWeights axis = bicubic_weights(in, out);
    for (const int other : {1, 2, 3, 5, 8, 11}) {
      SCOPED_TRACE(testing::Message() << in << " -> " << out << " beside " << other);
      const Image image = random_image(in, other, 7 * in + other);  // the same bytes as `in` rows of `other`
      std::vector<uint8_t> expected(size_t{3} * out * other, 1), got(expected.size(), 2);
      kScalarPasses.width(image.rgb.data(), in, other, axis, expected.data());
      kAvx2Passes.width(image.rgb.data(), in, other, axis, got.data());
      EXPECT_EQ(got, expected);
      kScalarPasses.height(image.rgb.data(), 3 * other, axis, expected.data());
      got.assign(got.size(), 3);
      kAvx2Passes.height(image.rgb.data(), 3 * other, axis, got.data());
      EXPECT_EQ(got, expected);
    }
  }
}

TEST(Resize, ExtremePixelsNeitherOverflowNorWrap) {
  for (const auto [in, out] : kLengths) {
    const AxisWeights axis = bicubic_weights(in, out);
    for (int x = 0; x < out; ++x) {  // the sum of all that is positive or negative, at 255 each
      int64_t positive = 0, negative = 0;
      for (int j = 0; j < axis.count[x]; ++j)
        (axis.of(x)[j] > 0 ? positive : negative) += 255 * axis.of(x)[j];
      EXPECT_LT(positive + (1 << axis.precision), int64_t{1} << 31);
      EXPECT_GT(negative, -(int64_t{1} << 31));
      // Weights sum to one but for their rounding, so flat colours stay.
      EXPECT_NEAR(double(positive + negative) / 255 / (1 << axis.precision), 1,
                  0.5 * axis.count[x] / (1 << axis.precision));
    }
  }
  Image flat{.width = 97, .height = 61}, out;
  flat.rgb.assign(size_t{3} * 97 * 61, 255);
  resize_bicubic(flat, {.height = 84, .width = 56}, out);
  EXPECT_EQ(out.rgb, std::vector<uint8_t>(size_t{3} * 84 * 56, 255));
}

TEST(Resize, ASideThatKeepsItsLengthIsLeftAlone) {
  const Image image = random_image(56, 84, 1);
  Image same;
  resize_bicubic(image, {.height = 84, .width = 56}, same);
  EXPECT_EQ(same, image);
}

TEST(SmartResize, SidesAreMultiplesAndAreasWithinTheRule) {
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    const int height = 1 + static_cast<int>(random() % 5000), width = 1 + static_cast<int>(random() % 5000);
    const auto size = smart_resize(height, width, SizeRule{});
    ASSERT_EQ(size.ok(), std::max(height, width) <= 200 * std::min(height, width))
        << width << " x " << height;
    if (!size.ok()) continue;
    EXPECT_EQ(size->height % 28, 0);
    EXPECT_EQ(size->width % 28, 0);
    EXPECT_GE(std::min(size->height, size->width), 28);
    EXPECT_LE(size->pixels(), kMaxImagePixels);
  }
}

TEST(SmartResize, LongSideRule) {
  const auto size = [](int height, int width, int long_side) {
    return smart_resize(height, width, SizeRule{.max_long_side = long_side}).value();
  };
  EXPECT_EQ(size(1080, 1920, 1008), (ImageSize{560, 1008}));  // 567 rounds down, to 20.25 tokens
  EXPECT_EQ(size(1080, 1920, 4000), (ImageSize{1092, 1932}));
  EXPECT_EQ(size(50, 60, 1000), (ImageSize{112, 140}));  // the short side grows to 112
  EXPECT_EQ(size(2000, 20, 500), (ImageSize{504, 28}));
  const auto large = smart_resize(6000, 6000, SizeRule{.max_long_side = 6000});
  ASSERT_FALSE(large.ok());
  EXPECT_NE(large.error().message.find("12845056"), std::string::npos) << large.error().message;
}

}  // namespace
}  // namespace sparrow::test
