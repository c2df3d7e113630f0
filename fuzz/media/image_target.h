// SPDX-License-Identifier: Apache-2.0
// What holds for any bytes as an image: the header's parser and the decoder agree, and errors say something.
#pragma once

#include <cstddef>
#include <span>

#include "base/check.h"
#include "media/image.h"

namespace sparrow {

inline void try_image(std::span<const std::byte> file) {
  constexpr DecodeLimits kLimits{.max_bytes = size_t{1} << 20, .max_pixels = 100'000};
  const auto header = read_header(file);
  const auto admitted = admit_image(file, kLimits);
  const auto image = decode_image(file, kLimits);
  if (!image.ok()) {
    SPARROW_CHECK(!image.error().message.empty());
    return;
  }
  SPARROW_CHECK(header.ok() && admitted.ok());
  SPARROW_CHECK_EQ(image->width, header->width);
  SPARROW_CHECK_EQ(image->height, header->height);
  SPARROW_CHECK_LE(int64_t{image->width} * image->height, kLimits.max_pixels);
  SPARROW_CHECK_EQ(image->rgb.size(), size_t{3} * image->width * image->height);
}

}  // namespace sparrow
