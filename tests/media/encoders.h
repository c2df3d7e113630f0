// SPDX-License-Identifier: Apache-2.0
// Files for the tests of media/, written by the libraries' own encoders; and pixels to write.
#pragma once

#include <cstdio>  // jpeglib.h needs FILE
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <jpeglib.h>
#include <png.h>
#include <webp/encode.h>

#include "media/image.h"

namespace sparrow::test {

inline Image random_image(int width, int height, uint64_t seed) {
  Image image{.width = width, .height = height};
  std::mt19937_64 random(seed);
  image.rgb.resize(size_t{3} * width * height);
  for (uint8_t& value : image.rgb) value = static_cast<uint8_t>(random());
  return image;
}

// Colours that change slowly: what lossy formats keep.
inline Image smooth_image(int width, int height) {
  Image image{.width = width, .height = height};
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (const int value :
           {64 + 128 * x / width, 64 + 128 * y / height, 190 - 64 * (x + y) / (width + height)})
        image.rgb.push_back(static_cast<uint8_t>(value));
  return image;
}

struct PngForm {
  int colour_type = PNG_COLOR_TYPE_RGB, depth = 8;
  bool interlaced = false;
  std::vector<png_color> palette;
  std::vector<uint8_t> palette_alpha;
  bool has_key = false;  // one colour is transparent
  png_color_16 key{};
};

// `rows` are the samples as the form packs them: [height, row bytes].
inline std::string encode_png(int width, int height, const PngForm& form,
                              std::vector<std::vector<uint8_t>> rows) {
  std::string file;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &file,
      [](png_structp p, png_bytep data, size_t size) {
        static_cast<std::string*>(png_get_io_ptr(p))->append(reinterpret_cast<const char*>(data), size);
      },
      nullptr);
  png_set_IHDR(png, info, width, height, form.depth, form.colour_type,
               form.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  if (!form.palette.empty())
    png_set_PLTE(png, info, form.palette.data(), static_cast<int>(form.palette.size()));
  if (!form.palette_alpha.empty())
    png_set_tRNS(png, info, form.palette_alpha.data(), static_cast<int>(form.palette_alpha.size()), nullptr);
  if (form.has_key) png_set_tRNS(png, info, nullptr, 0, &form.key);
  std::vector<png_bytep> pointers;
  for (auto& row : rows) pointers.push_back(row.data());
  png_write_info(png, info);
  png_write_image(png, pointers.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return file;
}

inline std::string encode_png(const Image& image, bool interlaced = false) {
  std::vector<std::vector<uint8_t>> rows;
  for (int y = 0; y < image.height; ++y)
    rows.emplace_back(image.rgb.begin() + int64_t{3} * y * image.width,
                      image.rgb.begin() + int64_t{3} * (y + 1) * image.width);
  return encode_png(image.width, image.height, {.interlaced = interlaced}, std::move(rows));
}

struct JpegForm {
  int quality = 95;
  int luma_across = 2, luma_down = 2;  // sampling factors against chroma's 1 x 1
  bool progressive = false;
  int restart_rows = 0;
};

inline std::string encode_jpeg(const Image& image, const JpegForm& form) {
  jpeg_compress_struct encoder{};
  jpeg_error_mgr errors;
  encoder.err = jpeg_std_error(&errors);
  jpeg_create_compress(&encoder);
  unsigned char* data = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&encoder, &data, &size);
  encoder.image_width = image.width, encoder.image_height = image.height;
  encoder.input_components = 3, encoder.in_color_space = JCS_RGB;
  jpeg_set_defaults(&encoder);
  jpeg_set_quality(&encoder, form.quality, TRUE);
  encoder.comp_info[0].h_samp_factor = form.luma_across, encoder.comp_info[0].v_samp_factor = form.luma_down;
  encoder.restart_in_rows = form.restart_rows;
  if (form.progressive) jpeg_simple_progression(&encoder);
  jpeg_start_compress(&encoder, TRUE);
  while (encoder.next_scanline < encoder.image_height) {
    JSAMPROW row = const_cast<uint8_t*>(image.rgb.data()) + size_t{3} * encoder.next_scanline * image.width;
    jpeg_write_scanlines(&encoder, &row, 1);
  }
  jpeg_finish_compress(&encoder);
  jpeg_destroy_compress(&encoder);
  std::string file(reinterpret_cast<char*>(data), size);
  std::free(data);
  return file;
}

inline std::string encode_webp(const Image& image, bool lossless) {
  uint8_t* data = nullptr;
  const int stride = 3 * image.width;
  const size_t size = lossless
                          ? WebPEncodeLosslessRGB(image.rgb.data(), image.width, image.height, stride, &data)
                          : WebPEncodeRGB(image.rgb.data(), image.width, image.height, stride, 90, &data);
  std::string file(reinterpret_cast<char*>(data), size);
  WebPFree(data);
  return file;
}

}  // namespace sparrow::test
