// SPDX-License-Identifier: Apache-2.0
#include "media/picture/picture_work.h"

#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace sparrow {
namespace {

// As the worker's memory has it: both sides are the same program.
struct Written {
  int32_t height, width;
  uint64_t max_bytes;
  int64_t max_pixels;
};

}  // namespace

MediaBytes options_of(const PictureTask& task) {
  const Written written{task.size.height, task.size.width, task.limits.max_bytes, task.limits.max_pixels};
  MediaBytes bytes(sizeof written);
  std::memcpy(bytes.data(), &written, sizeof written);
  return bytes;
}

Result<size_t> decode_picture(std::span<const std::byte> options, std::span<const std::byte> file,
                              std::span<std::byte> rgb) {
  Written written;
  SPARROW_CHECK_EQ(options.size(), sizeof written);
  std::memcpy(&written, options.data(), sizeof written);
  const DecodeLimits limits{.max_bytes = written.max_bytes, .max_pixels = written.max_pixels};
  Image image = SPARROW_TRY(decode_image(file, limits));
  const ImageSize size{.height = written.height, .width = written.width};
  Image resized;
  if (image.height == size.height && image.width == size.width)
    resized = std::move(image);
  else
    resize_bicubic(image, size, resized);
  SPARROW_CHECK_LE(resized.rgb.size(), rgb.size());
  std::memcpy(rgb.data(), resized.rgb.data(), resized.rgb.size());
  return resized.rgb.size();
}

Result<Image> picture_of(const MediaBytes& output, const PictureTask& task) {
  if (output.size() != task.output_bytes())
    return Error{Errc::kCorrupt, "the decoder gave a picture of another size"};
  Image image{.width = task.size.width, .height = task.size.height};
  image.rgb.resize(output.size());
  std::memcpy(image.rgb.data(), output.data(), output.size());
  return image;
}

}  // namespace sparrow
