// SPDX-License-Identifier: Apache-2.0
// Which format a file has, whether it may be decoded, and how its pixels are turned upright.
#include "media/image.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/strf.h"
#include "media/format/formats.h"

namespace sparrow {
namespace {

// What people send that is none of ours, for a message that helps.
const char* foreign_format(ByteView file) {
  if (file.is(0, "BM")) return "BMP";
  if (file.is(0, "II*") || file.is(0, "MM")) return "TIFF";
  if (file.is(4, "ftypavif") || file.is(4, "ftypavis")) return "AVIF";
  if (file.is(4, "ftyphei") || file.is(4, "ftypmif1")) return "HEIC";
  if (file.is(4, "ftyp") || file.is(0, "\x1a\x45\xdf\xa3")) return "a video";
  if (file.is(0, "%PDF")) return "PDF";
  if (file.is(0, "<svg") || file.is(0, "<?xml")) return "SVG";
  if (file.is(4, "JXL ") || file.is(0, "\xff\x0a")) return "JPEG XL";
  return nullptr;
}

// The header with its size as stored.
Result<ImageHeader> stored_header(ByteView file) {
  if (file.is(0, "\xff\xd8")) return read_jpeg_header(file);
  if (file.is(0, "\x89PNG\r\n\x1a\n")) return read_png_header(file);
  if (file.is(0, "RIFF") && file.is(8, "WEBP")) return read_webp_header(file);
  if (file.is(0, "GIF87a") || file.is(0, "GIF89a")) return read_gif_header(file);
  const char* foreign = foreign_format(file);
  return Error{Errc::kUnsupported,
               foreign ? strf("the image is {}; JPEG, PNG, WebP and GIF can be read", foreign)
                       : strf("the image ({} bytes) is not JPEG, PNG, WebP or GIF", file.size())};
}

bool swaps_sides(const ImageHeader& header) {
  return header.orientation >= 5;
}

// The header of a file within the limits, its size as stored.
Result<ImageHeader> admitted_header(ByteView file, const DecodeLimits& limits) {
  if (file.size() > limits.max_bytes)
    return Error{Errc::kInvalidArgument,
                 strf("the image has {} bytes; {} is the limit", file.size(), limits.max_bytes)};
  const ImageHeader header = SPARROW_TRY(stored_header(file));
  if (int64_t{header.width} * header.height > limits.max_pixels)
    return Error{Errc::kInvalidArgument, strf("the image has {} x {} pixels; {} in all is the limit",
                                              header.width, header.height, limits.max_pixels)};
  return header;
}

ImageHeader upright_header(ImageHeader header) {
  if (swaps_sides(header)) std::swap(header.width, header.height);
  return header;
}

// Pixel (x, y) of the upright image lies at start + y * down + x * right of the stored one.
struct Walk {
  int64_t start, right, down;
};

Walk walk_of(int orientation, int64_t width, int64_t height) {
  const int64_t row = width, last_column = width - 1, last_row = (height - 1) * width;
  switch (orientation) {
    case 2:
      return {last_column, -1, row};
    case 3:
      return {last_row + last_column, -1, -row};
    case 4:
      return {last_row, 1, -row};
    case 5:
      return {0, row, 1};
    case 6:
      return {last_row, -row, 1};
    case 7:
      return {last_row + last_column, -row, -1};
    case 8:
      return {last_column, row, -1};
    default:
      return {0, 1, row};
  }
}

Image turned_upright(const Image& stored, const ImageHeader& header) {
  Image upright{.width = swaps_sides(header) ? stored.height : stored.width,
                .height = swaps_sides(header) ? stored.width : stored.height};
  upright.rgb.resize(stored.rgb.size());
  const Walk walk = walk_of(header.orientation, stored.width, stored.height);
  uint8_t* out = upright.rgb.data();
  for (int y = 0; y < upright.height; ++y) {
    const uint8_t* from = stored.rgb.data() + 3 * (walk.start + y * walk.down);
    for (int x = 0; x < upright.width; ++x, out += 3) std::memcpy(out, from + 3 * (x * walk.right), 3);
  }
  return upright;
}

Result<Image> decode_stored(ByteView file, const ImageHeader& header) {
  switch (header.format) {
    case ImageFormat::kJpeg:
      return decode_jpeg(file, header);
    case ImageFormat::kPng:
      return decode_png(file, header);
    case ImageFormat::kWebp:
      return decode_webp(file, header);
    case ImageFormat::kGif:
      return decode_gif(file, header);
  }
  SPARROW_CHECK(false);
}

}  // namespace

const char* to_string(ImageFormat format) {
  static constexpr const char* kNames[] = {"JPEG", "PNG", "WebP", "GIF"};
  return kNames[static_cast<int>(format)];
}

Error corrupt_image(ImageFormat format, std::string_view what) {
  return Error{Errc::kCorrupt, strf("the {} image cannot be decoded: {}", to_string(format), what)};
}

void lay_over_white(const uint8_t* rgba, size_t pixels, uint8_t* rgb) {
  for (size_t i = 0; i < pixels; ++i, rgba += 4, rgb += 3) {
    const unsigned alpha = rgba[3];
    for (int c = 0; c < 3; ++c) rgb[c] = over_white(rgba[c], alpha);
  }
}

Result<ImageHeader> read_header(std::span<const std::byte> file) {
  return upright_header(SPARROW_TRY(stored_header(ByteView(file))));
}

Result<ImageHeader> admit_image(std::span<const std::byte> file, const DecodeLimits& limits) {
  return upright_header(SPARROW_TRY(admitted_header(ByteView(file), limits)));
}

Result<Image> decode_image(std::span<const std::byte> file, const DecodeLimits& limits) {
  const ImageHeader header = SPARROW_TRY(admitted_header(ByteView(file), limits));
  Image stored = SPARROW_TRY(decode_stored(ByteView(file), header));
  if (header.orientation == 1) return stored;
  return turned_upright(stored, header);
}

}  // namespace sparrow
