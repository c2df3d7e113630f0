// SPDX-License-Identifier: Apache-2.0
// Decoding what the goldens leave out: every form of PNG, odd samplings of JPEG, GIF's corners, frames of
// animations.
#include "media/image.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "media/encoders.h"
#include "media/format/formats.h"
#include "media/vision_golden.h"

namespace sparrow::test {
namespace {

Image decode(const std::string& file) {
  const auto image = decode_image(bytes_of(file), DecodeLimits{});
  EXPECT_TRUE(image.ok()) << image.error().message;
  return image.ok() ? image.value() : Image{};
}

// A PNG of random samples, and what must come out of it.
struct PngCase {
  std::string file;
  Image expected;
};

PngCase random_png(int colour_type, int depth, bool interlaced, bool transparent, uint64_t seed) {
  constexpr int kWidth = 21, kHeight = 13;
  std::mt19937_64 random(seed);
  PngForm form{.colour_type = colour_type, .depth = depth, .interlaced = interlaced};
  const bool palette = colour_type == PNG_COLOR_TYPE_PALETTE, colour = colour_type & PNG_COLOR_MASK_COLOR;
  const bool alpha = colour_type & PNG_COLOR_MASK_ALPHA;
  const int channels = (palette || !colour ? 1 : 3) + alpha, levels = 1 << depth;
  if (palette) {
    for (int i = 0; i < levels; ++i)
      form.palette.push_back({png_byte(random()), png_byte(random()), png_byte(random())});
    if (transparent)
      for (int i = 0; i < levels / 2; ++i) form.palette_alpha.push_back(static_cast<uint8_t>(random()));
  }
  PngCase result{.expected = {.width = kWidth, .height = kHeight}};
  std::vector<std::vector<uint8_t>> rows(kHeight);
  for (int y = 0; y < kHeight; ++y) {
    std::vector<uint8_t>& row = rows[y];
    row.resize((kWidth * channels * depth + 7) / 8);
    for (int x = 0; x < kWidth; ++x) {
      int samples[4] = {};
      for (int c = 0; c < channels; ++c) {
        samples[c] = static_cast<int>(random() % levels);
        const int bit = (x * channels + c) * depth;
        if (depth == 16)
          row[bit / 8] = static_cast<uint8_t>(samples[c] >> 8),
                    row[bit / 8 + 1] = static_cast<uint8_t>(samples[c]);
        if (depth <= 8) row[bit / 8] |= static_cast<uint8_t>(samples[c] << (8 - depth - bit % 8));
      }
      if (transparent && !palette && x == 4 && y == 4) {  // this pixel's colour is the key
        form.has_key = true;
        form.key.gray = static_cast<png_uint_16>(samples[0]);
        form.key.red = form.key.gray, form.key.green = static_cast<png_uint_16>(samples[1]),
        form.key.blue = static_cast<png_uint_16>(samples[2]);
      }
      const auto byte = [&](int sample) { return depth == 16 ? sample >> 8 : sample * 255 / (levels - 1); };
      int rgb[3], a = alpha ? byte(samples[channels - 1]) : 255;
      for (int c = 0; c < 3; ++c) rgb[c] = byte(samples[colour ? c : 0]);
      if (palette) {
        const png_color entry = form.palette[samples[0]];
        rgb[0] = entry.red, rgb[1] = entry.green, rgb[2] = entry.blue;
        if (samples[0] < static_cast<int>(form.palette_alpha.size())) a = form.palette_alpha[samples[0]];
      }
      if (form.has_key && x == 4 && y == 4) a = 0;
      for (const int c : rgb) result.expected.rgb.push_back(over_white(c, a));
    }
  }
  result.file = encode_png(kWidth, kHeight, form, rows);
  return result;
}

TEST(Png, EveryTypeDepthInterlaceAndTransparency) {
  const auto expect = [](int type, std::initializer_list<int> depths) {
    for (const int depth : depths)
      for (const bool interlaced : {false, true})
        for (const bool transparent : {false, true}) {
          // Few levels would repeat the key's colour elsewhere: there the palette alone is transparent.
          if (transparent && (type & PNG_COLOR_MASK_ALPHA || (type == PNG_COLOR_TYPE_GRAY && depth < 16)))
            continue;
          const PngCase png = random_png(type, depth, interlaced, transparent, 100 * type + depth);
          EXPECT_EQ(decode(png.file), png.expected)
              << type << " " << depth << " " << interlaced << transparent;
        }
  };
  expect(PNG_COLOR_TYPE_GRAY, {1, 2, 4, 8, 16});
  expect(PNG_COLOR_TYPE_PALETTE, {1, 2, 4, 8});
  expect(PNG_COLOR_TYPE_RGB, {8, 16});
  expect(PNG_COLOR_TYPE_GRAY_ALPHA, {8, 16});
  expect(PNG_COLOR_TYPE_RGB_ALPHA, {8, 16});
}

double mean_difference(const Image& a, const Image& b) {
  EXPECT_EQ(a.rgb.size(), b.rgb.size());
  double sum = 0;
  for (size_t i = 0; i < std::min(a.rgb.size(), b.rgb.size()); ++i) sum += std::abs(a.rgb[i] - b.rgb[i]);
  return sum / static_cast<double>(a.rgb.size());
}

TEST(Jpeg, EverySamplingBaselineAndProgressive) {
  const Image image = smooth_image(75, 53);
  for (const auto& [across, down] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {1, 4}, {4, 2}, {2, 4}})
    for (const bool progressive : {false, true})
      for (const int restart_rows : {0, 1}) {
        const std::string file = encode_jpeg(image, {.luma_across = across,
                                                     .luma_down = down,
                                                     .progressive = progressive,
                                                     .restart_rows = restart_rows});
        EXPECT_LT(mean_difference(decode(file), image), 2) << across << " x " << down << progressive;
      }
}

TEST(Webp, LosslessIsExactAndLossyIsNear) {
  const Image noise = random_image(37, 23, 5), smooth = smooth_image(75, 53);
  EXPECT_EQ(decode(encode_webp(noise, true)), noise);
  EXPECT_LT(mean_difference(decode(encode_webp(smooth, false)), smooth), 3);
}

std::string le(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> 8 * i);
  return text;
}

std::string chunk(const std::string& name, const std::string& data) {
  return name + le(data.size(), 4) + data + (data.size() % 2 ? std::string(1, '\0') : "");
}

TEST(Webp, OfAnAnimationTheFirstFrameCountsAndTheRestIsWhite) {
  const Image frame = random_image(8, 6, 2), later = random_image(12, 10, 3);
  const auto bitstream = [](const Image& image) { return encode_webp(image, true).substr(12); };
  const auto animation_frame = [&](const Image& image, int x, int y) {
    return chunk("ANMF", le(x / 2, 3) + le(y / 2, 3) + le(image.width - 1, 3) + le(image.height - 1, 3) +
                             le(100, 3) + le(0, 1) + bitstream(image));
  };
  const std::string body = "WEBP" + chunk("VP8X", le(0x12, 4) + le(11, 3) + le(9, 3)) +
                           chunk("ANIM", le(0xff00ff00, 4) + le(0, 2)) + animation_frame(frame, 2, 4) +
                           animation_frame(later, 0, 0);
  const Image image = decode("RIFF" + le(body.size(), 4) + body);
  ASSERT_EQ(image.width, 12);
  ASSERT_EQ(image.height, 10);
  for (int y = 0; y < 10; ++y)
    for (int x = 0; x < 12; ++x)
      for (int c = 0; c < 3; ++c) {
        const bool inside = x >= 2 && x < 10 && y >= 4;
        EXPECT_EQ(image.rgb[3 * (12 * y + x) + c], inside ? frame.rgb[3 * (8 * (y - 4) + x - 2) + c] : 255);
      }
}

// A GIF whose codes stay at 9 bits: a clear code in front of every pixel.
std::string plain_gif(int screen_width, int screen_height, int x, int y, int width, int height,
                      bool interlaced, const std::vector<uint8_t>& pixels, int transparent = -1) {
  std::string file = "GIF89a" + le(screen_width, 2) + le(screen_height, 2) + le(0xf7, 1) + le(0, 2);
  for (int i = 0; i < 256; ++i) file += le(i, 1) + le(255 - i, 1) + le(i / 2, 1);
  if (transparent >= 0) file += le(0x04f921, 3) + le(1, 1) + le(0, 2) + le(transparent, 1) + le(0, 1);
  file += "," + le(x, 2) + le(y, 2) + le(width, 2) + le(height, 2) + le(interlaced ? 0x40 : 0, 1) + le(8, 1);
  std::string bits, data;
  const auto put = [&](int code) {
    for (int i = 0; i < 9; ++i) bits += static_cast<char>(code >> i & 1);
  };
  for (const uint8_t pixel : pixels) put(256), put(pixel);
  put(257);
  for (size_t i = 0; i < bits.size(); i += 8) {
    int byte = 0;
    for (size_t j = i; j < std::min(bits.size(), i + 8); ++j) byte |= bits[j] << (j - i);
    data += static_cast<char>(byte);
  }
  for (size_t i = 0; i < data.size(); i += 255)
    file += le(std::min<size_t>(255, data.size() - i), 1) + data.substr(i, 255);
  return file + le(0, 1) + ";";
}

TEST(Gif, FramesLieOnTheScreenRowsInTheirOrderAndTransparencyIsWhite) {
  constexpr int kRowOrder[] = {0, 8, 4, 2, 6, 1, 3, 5, 7};  // of 9 interlaced rows
  std::vector<uint8_t> pixels(5 * 9);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i);
  for (const bool interlaced : {false, true}) {
    const Image image = decode(plain_gif(7, 12, 1, 2, 5, 9, interlaced, pixels, 8));
    ASSERT_EQ(image.width, 7);
    ASSERT_EQ(image.height, 12);
    Image expected{.width = 7, .height = 12, .rgb = std::vector<uint8_t>(3 * 7 * 12, 255)};
    for (int row = 0; row < 9; ++row)
      for (int x = 0; x < 5; ++x) {
        const int index = row * 5 + x, y = 2 + (interlaced ? kRowOrder[row] : row);
        uint8_t* pixel = &expected.rgb[3 * (7 * y + x + 1)];
        if (index != 8)
          pixel[0] = uint8_t(index), pixel[1] = uint8_t(255 - index), pixel[2] = uint8_t(index / 2);
      }
    EXPECT_EQ(image, expected) << interlaced;
  }
}

TEST(Gif, AScreenSmallerThanItsFrameGrows) {
  const auto header = read_header(bytes_of(plain_gif(0, 0, 3, 2, 5, 1, false, {1, 2, 3, 4, 5})));
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header->width, 8);
  EXPECT_EQ(header->height, 3);
}

TEST(Exif, OrientationIsReadFromPngAndWebpToo) {
  const std::string exif = std::string("MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0", 22);
  EXPECT_EQ(exif_orientation(ByteView(bytes_of(exif))), 6);
  EXPECT_EQ(exif_orientation(ByteView(bytes_of(exif).first(15))), 1);
  const Image image = random_image(9, 4, 1);
  std::string png = encode_png(image);
  const auto be32 = [](uint32_t v) {
    return std::string{char(v >> 24), char(v >> 16), char(v >> 8), char(v)};
  };
  png.insert(
      33, be32(22) + "eXIf" + exif + be32(0));  // nobody asks for the checksum of a chunk that is passed over
  const Image turned = decode(png);
  ASSERT_EQ(turned.width, 4);
  ASSERT_EQ(turned.height, 9);
  for (int y = 0; y < 9; ++y)
    for (int x = 0; x < 4; ++x) EXPECT_EQ(turned.rgb[3 * (4 * y + x)], image.rgb[3 * (9 * (3 - x) + y)]);

  const Image whole = random_image(6, 2, 1);
  const std::string body = "WEBP" + chunk("VP8X", le(0x08, 4) + le(5, 3) + le(1, 3)) +
                           encode_webp(whole, true).substr(12) + chunk("EXIF", exif);
  const Image upright = decode("RIFF" + le(body.size(), 4) + body);
  EXPECT_EQ(upright.width, 2);
  EXPECT_EQ(upright.height, 6);
}

}  // namespace
}  // namespace sparrow::test
