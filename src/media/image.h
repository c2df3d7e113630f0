// SPDX-License-Identifier: Apache-2.0
// Bytes -> pixels. A file's header is read by a parser of our own, and what it says is held against the
// limits before any decoder runs; a decoder that finds another size than the header's gives up. No global
// state: any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace sparrow {

enum class ImageFormat { kJpeg, kPng, kWebp, kGif };
const char* to_string(ImageFormat format);

struct Image {
  int width = 0, height = 0;
  std::vector<uint8_t> rgb;  // [height, width, 3]
  friend bool operator==(const Image&, const Image&) = default;
};

struct ImageHeader {
  ImageFormat format{};
  int width = 0, height = 0;  // upright, as decode_image() gives them
  int orientation = 1;        // EXIF's, 1 to 8: how the stored pixels are turned
};

struct DecodeLimits {
  size_t max_bytes = size_t{32} << 20;
  int64_t max_pixels = int64_t{64} << 20;  // decoders need up to 15 bytes for each
};

// What the file says of itself. No decoder runs, nothing is allocated, and the time is bounded by the file's
// size.
Result<ImageHeader> read_header(std::span<const std::byte> file);

// The same for a file that may be decoded: anything over the limits is an error that names both numbers.
Result<ImageHeader> admit_image(std::span<const std::byte> file, const DecodeLimits& limits);

// The first frame, turned upright, transparency over white, 8 bits a channel. A file that ends early is an
// error.
Result<Image> decode_image(std::span<const std::byte> file, const DecodeLimits& limits);

}  // namespace sparrow
