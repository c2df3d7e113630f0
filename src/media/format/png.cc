// SPDX-License-Identifier: Apache-2.0
// PNG by libpng: every depth, palette and interlace becomes 8 bits of RGB or RGBA; of 16 bits the high byte
// stays.
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

#include "media/format/formats.h"

namespace sparrow {
namespace {

// Everything a decoder touches, without destructors: an error in libpng jumps over the frames between.
struct PngJob {
  png_structp png = nullptr;
  png_infop info = nullptr;
  jmp_buf on_error;
  const uint8_t* file = nullptr;
  size_t size = 0, at = 0;
  uint32_t width = 0, height = 0;
  char message[128] = {};
};

[[noreturn]] void fail(png_structp png, png_const_charp message) {
  auto* job = static_cast<PngJob*>(png_get_error_ptr(png));
  std::snprintf(job->message, sizeof(job->message), "%s", message);
  std::longjmp(job->on_error, 1);
}

void read_bytes(png_structp png, png_bytep out, size_t count) {
  auto* job = static_cast<PngJob*>(png_get_io_ptr(png));
  if (count > job->size - job->at) fail(png, "it ends early");
  std::memcpy(out, job->file + job->at, count);
  job->at += count;
}

// Reads the header and asks for rows of 8 bit RGB or RGBA. The bytes of a pixel, or 0 after an error.
int open(PngJob* job) {
  if (setjmp(job->on_error)) return 0;
  job->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, job, fail, [](png_structp, png_const_charp) {});
  if (job->png == nullptr) return 0;
  job->info = png_create_info_struct(job->png);
  if (job->info == nullptr) fail(job->png, "there is no memory");
  png_set_read_fn(job->png, job, read_bytes);
  png_set_user_limits(job->png, job->width, job->height);
  // Text, profiles and the like are passed over: some of them are compressed.
  png_set_keep_unknown_chunks(job->png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(job->png, job->info);
  if (png_get_image_width(job->png, job->info) != job->width ||
      png_get_image_height(job->png, job->info) != job->height)
    fail(job->png, "it has two sizes");
  png_set_expand(job->png);  // palettes, few bits, transparent colours
  png_set_strip_16(job->png);
  png_set_gray_to_rgb(job->png);
  png_set_interlace_handling(job->png);
  png_read_update_info(job->png, job->info);
  const int channels = png_get_channels(job->png, job->info);
  const size_t row = size_t{job->width} * static_cast<size_t>(channels);
  if ((channels != 3 && channels != 4) || png_get_rowbytes(job->png, job->info) != row)
    fail(job->png, "its pixels have an unknown form");
  return channels;
}

bool read_rows(PngJob* job, png_bytepp rows) {
  if (setjmp(job->on_error)) return false;
  png_read_image(job->png, rows);
  png_read_end(job->png, nullptr);
  return true;
}

}  // namespace

Result<ImageHeader> read_png_header(ByteView file) {
  ImageHeader header{.format = ImageFormat::kPng};
  constexpr uint32_t kMaxSide = 0x7fffffff;
  if (!file.has(8, 25) || file.be32(8) != 13 || !file.is(12, "IHDR"))
    return corrupt_image(ImageFormat::kPng, "it has no header");
  const uint32_t width = file.be32(16), height = file.be32(20);
  if (width == 0 || height == 0 || width > kMaxSide || height > kMaxSide)
    return corrupt_image(ImageFormat::kPng, "its header has no size");
  header.width = static_cast<int>(width), header.height = static_cast<int>(height);
  // Chunks: length, name, bytes, checksum. The orientation may stand behind the pixels.
  for (size_t at = 8; file.has(at, 12) && !file.is(at + 4, "IEND");) {
    const size_t length = file.be32(at);
    if (!file.has(at + 12, length)) break;
    if (file.is(at + 4, "eXIf")) header.orientation = exif_orientation(file.part(at + 8, length));
    at += 12 + length;
  }
  return header;
}

Result<Image> decode_png(ByteView file, const ImageHeader& header) {
  struct Job : PngJob {
    ~Job() { png_destroy_read_struct(&png, &info, nullptr); }
  } job;
  job.file = reinterpret_cast<const uint8_t*>(file.bytes().data());
  job.size = file.size();
  job.width = static_cast<uint32_t>(header.width), job.height = static_cast<uint32_t>(header.height);
  const int channels = open(&job);
  if (channels == 0) return corrupt_image(ImageFormat::kPng, job.message);

  Image image{.width = header.width, .height = header.height};
  const size_t pixels = size_t{job.width} * job.height, stride = size_t{job.width} * channels;
  image.rgb.resize(pixels * channels);
  std::vector<png_bytep> rows(job.height);
  for (size_t y = 0; y < rows.size(); ++y) rows[y] = image.rgb.data() + y * stride;
  if (!read_rows(&job, rows.data())) return corrupt_image(ImageFormat::kPng, job.message);
  if (channels == 4) {
    lay_over_white(image.rgb.data(), pixels, image.rgb.data());
    image.rgb.resize(pixels * 3);
  }
  return image;
}

}  // namespace sparrow
