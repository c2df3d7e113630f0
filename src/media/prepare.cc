// SPDX-License-Identifier: Apache-2.0
#include "media/prepare.h"

namespace sparrow {

Result<ImageSize> planned_size(std::span<const std::byte> file, const SizeRule& rule,
                               const DecodeLimits& limits) {
  const ImageHeader header = SPARROW_TRY(admit_image(file, limits));
  return smart_resize(header.height, header.width, rule);
}

Result<MediaPatches> prepare_image(std::span<const std::byte> file, const SizeRule& rule,
                                   const DecodeLimits& limits) {
  // First the size: an image that has none is not decoded.
  const ImageSize size = SPARROW_TRY(planned_size(file, rule, limits));
  const Image image = SPARROW_TRY(decode_image(file, limits));
  Image resized;
  resize_bicubic(image, size, resized);
  return patches_of_image(resized);
}

}  // namespace sparrow
