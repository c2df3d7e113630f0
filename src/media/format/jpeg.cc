// SPDX-License-Identifier: Apache-2.0
// JPEG by libjpeg-turbo, with the library's defaults: the accurate integer DCT and smooth chroma upsampling,
// to whose bytes the model's own preprocessing is equal.
#include <algorithm>
#include <csetjmp>
#include <cstdint>
#include <cstdio>  // jpeglib.h needs FILE
#include <vector>

#include <jpeglib.h>

#include "media/format/formats.h"

namespace sparrow {
namespace {

// A scan walks over all of the image, however few bytes it has, at about a pixel in a nanosecond. Encoders
// write ten.
constexpr int64_t kLeastScans = 20, kMostScans = 100, kScannedPixels = int64_t{256} << 20;
constexpr int kRowsAtOnce = 4;

// Everything a decoder touches, without destructors: an error in libjpeg jumps over the frames between.
struct JpegJob {
  jpeg_error_mgr errors;  // first: libjpeg hands out a pointer to it
  jmp_buf on_error;
  jpeg_decompress_struct decoder;
  jpeg_progress_mgr progress;
  const uint8_t* file;
  size_t size;
  int width, height;
  uint8_t* rgb;   // [height, width, 3]
  uint8_t* cmyk;  // [width, 4], one row
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void fail(j_common_ptr decoder) {
  auto* job = reinterpret_cast<JpegJob*>(decoder->err);
  decoder->err->format_message(decoder, job->message);
  std::longjmp(job->on_error, 1);
}

[[noreturn]] void fail_with(j_decompress_ptr decoder, const char* message) {
  auto* job = reinterpret_cast<JpegJob*>(decoder->err);
  std::snprintf(job->message, sizeof(job->message), "%s", message);
  std::longjmp(job->on_error, 1);
}

// libjpeg would go on with gray where a file ends early.
boolean fail_at_end(j_decompress_ptr decoder) {
  fail_with(decoder, "it ends early");
}

void count_scans(j_common_ptr decoder) {
  auto* job = reinterpret_cast<JpegJob*>(decoder->err);
  const int64_t most =
      std::clamp(kScannedPixels / (int64_t{job->width} * job->height), kLeastScans, kMostScans);
  if (job->decoder.input_scan_number <= most) return;
  std::snprintf(job->message, sizeof(job->message), "it has more than %d scans", static_cast<int>(most));
  std::longjmp(job->on_error, 1);
}

// Adobe's inversion undone: 255 is no ink. What is left of the white after black, less the ink's share of it.
void cmyk_to_rgb(const uint8_t* cmyk, int width, uint8_t* rgb) {
  for (int x = 0; x < width; ++x, cmyk += 4, rgb += 3) {
    const int white = cmyk[3];
    for (int c = 0; c < 3; ++c)
      rgb[c] = static_cast<uint8_t>(white - (white * (255 - cmyk[c]) * 2 + 255) / 510);
  }
}

void set_up(JpegJob* job) {
  jpeg_decompress_struct& decoder = job->decoder;
  jpeg_create_decompress(&decoder);
  jpeg_mem_src(&decoder, job->file, job->size);
  decoder.src->fill_input_buffer = fail_at_end;
  job->progress.progress_monitor = count_scans;
  decoder.progress = &job->progress;
  // Coefficients of all components, each block padded to the largest unit; rows in flight come on top.
  decoder.mem->max_memory_to_use = (job->width + 64L) * (job->height + 64L) * 10 + (4L << 20);
}

void read_rows(JpegJob* job) {
  jpeg_decompress_struct& decoder = job->decoder;
  const size_t stride = size_t{3} * decoder.output_width;
  while (decoder.output_scanline < decoder.output_height) {
    const JDIMENSION y = decoder.output_scanline;
    if (decoder.out_color_space == JCS_CMYK) {
      JSAMPROW row = job->cmyk;
      if (jpeg_read_scanlines(&decoder, &row, 1) == 1) cmyk_to_rgb(row, job->width, job->rgb + y * stride);
      continue;
    }
    JSAMPROW rows[kRowsAtOnce];
    JDIMENSION count = 0;
    for (; count < kRowsAtOnce && y + count < decoder.output_height; ++count)
      rows[count] = job->rgb + (y + count) * stride;
    jpeg_read_scanlines(&decoder, rows, count);
  }
}

bool decode(JpegJob* job) {
  jpeg_decompress_struct& decoder = job->decoder;
  decoder.err = jpeg_std_error(&job->errors);
  job->errors.error_exit = fail;
  job->errors.emit_message = [](j_common_ptr, int) {};  // slips that libjpeg mends by itself
  if (setjmp(job->on_error)) {
    jpeg_destroy_decompress(&decoder);
    return false;
  }
  set_up(job);
  jpeg_read_header(&decoder, TRUE);
  if (decoder.image_width != static_cast<JDIMENSION>(job->width) ||
      decoder.image_height != static_cast<JDIMENSION>(job->height))
    fail_with(&decoder, "it has two sizes");
  decoder.out_color_space = decoder.num_components == 4 ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(&decoder);
  if (decoder.output_width != decoder.image_width || decoder.output_height != decoder.image_height)
    fail_with(&decoder, "it has two sizes");
  read_rows(job);
  jpeg_destroy_decompress(&decoder);
  return true;
}

bool is_frame_header(uint32_t marker) {  // SOF0 to SOF15 without DHT, JPG, DAC
  return marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
}

// The position after the next marker's two bytes, or the file's size.
size_t next_marker(ByteView file, size_t at) {
  while (at < file.size() && file.u8(at) != 0xff) ++at;
  while (at < file.size() && file.u8(at) == 0xff) ++at;
  return at + 1 < file.size() ? at + 1 : file.size();
}

}  // namespace

Result<ImageHeader> read_jpeg_header(ByteView file) {
  ImageHeader header{.format = ImageFormat::kJpeg};
  bool has_exif = false;
  for (size_t at = next_marker(file, 2); at < file.size();) {
    const uint32_t marker = file.u8(at - 1);
    if (marker == 0xd9 || marker == 0xda) break;  // end of image, start of a scan
    if (marker == 0x00 || marker == 0x01 || (marker >= 0xd0 && marker <= 0xd8)) {  // markers without a length
      at = next_marker(file, at);
      continue;
    }
    const size_t length = file.be16(at);
    if (length < 2 || !file.has(at, length)) return corrupt_image(ImageFormat::kJpeg, "it ends early");
    if (is_frame_header(marker) && header.width == 0) {
      header.height = static_cast<int>(file.be16(at + 3));
      header.width = static_cast<int>(file.be16(at + 5));
      if (length < 8 || header.width == 0 || header.height == 0)
        return corrupt_image(ImageFormat::kJpeg, "its header has no size");
    }
    if (marker == 0xe1 && !has_exif && file.is(at + 2, "Exif")) {
      header.orientation = exif_orientation(file.part(at + 2, length - 2));
      has_exif = true;
    }
    at = next_marker(file, at + length);
  }
  if (header.width == 0) return corrupt_image(ImageFormat::kJpeg, "it has no frame header");
  return header;
}

Result<Image> decode_jpeg(ByteView file, const ImageHeader& header) {
  Image image{.width = header.width, .height = header.height};
  image.rgb.resize(size_t{3} * header.width * header.height);
  std::vector<uint8_t> cmyk(size_t{4} * header.width);
  JpegJob job{.file = reinterpret_cast<const uint8_t*>(file.bytes().data()),
              .size = file.size(),
              .width = header.width,
              .height = header.height,
              .rgb = image.rgb.data(),
              .cmyk = cmyk.data()};
  if (!decode(&job)) return corrupt_image(ImageFormat::kJpeg, job.message);
  return image;
}

}  // namespace sparrow
