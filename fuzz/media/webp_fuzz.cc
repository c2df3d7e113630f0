// SPDX-License-Identifier: Apache-2.0
// Any bytes as a WebP file.
#include <cstdint>

#include "media/image_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sparrow::try_image(std::as_bytes(std::span(data, size)));
  return 0;
}
