// SPDX-License-Identifier: Apache-2.0
// What each image format gives image.cc: its header, and its pixels as they are stored, that is, not turned
// yet. Sizes in a header are above zero; decoders are asked only after the limits were.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "media/format/byte_view.h"
#include "media/image.h"

namespace sparrow {

Result<ImageHeader> read_jpeg_header(ByteView file);
Result<ImageHeader> read_png_header(ByteView file);
Result<ImageHeader> read_webp_header(ByteView file);
Result<ImageHeader> read_gif_header(ByteView file);

// `header` with the size as stored.
Result<Image> decode_jpeg(ByteView file, const ImageHeader& header);
Result<Image> decode_png(ByteView file, const ImageHeader& header);
Result<Image> decode_webp(ByteView file, const ImageHeader& header);
Result<Image> decode_gif(ByteView file, const ImageHeader& header);

// The orientation that a TIFF structure holds, 1 where it holds none; "Exif\0\0" may stand in front.
int exif_orientation(ByteView exif);

// A channel of a pixel that lies over white.
inline uint8_t over_white(unsigned channel, unsigned alpha) {
  return static_cast<uint8_t>((channel * alpha + 255 * (255 - alpha) + 127) / 255);
}
// [pixels, RGBA] -> [pixels, RGB]; both may be the same memory.
void lay_over_white(const uint8_t* rgba, size_t pixels, uint8_t* rgb);

Error corrupt_image(ImageFormat format, std::string_view what);

}  // namespace sparrow
