// SPDX-License-Identifier: Apache-2.0
// What workers do with a picture, and how the two sides write it down.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "media/image.h"
#include "media/media_bytes.h"
#include "media/resize.h"

namespace sparrow {

// The server has read the header: it knows the size that comes back, and takes no other.
struct PictureTask {
  ImageSize size;  // resized
  DecodeLimits limits;

  size_t output_bytes() const { return static_cast<size_t>(size.pixels()) * 3; }
};

MediaBytes options_of(const PictureTask& task);

// In the worker: a file -> the resized picture's RGB bytes. Has the form of MediaWork.
Result<size_t> decode_picture(std::span<const std::byte> options, std::span<const std::byte> file,
                              std::span<std::byte> rgb);

// In the server.
Result<Image> picture_of(const MediaBytes& output, const PictureTask& task);

}  // namespace sparrow
