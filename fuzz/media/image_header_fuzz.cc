// SPDX-License-Identifier: Apache-2.0
// Any bytes to the parser of headers, of whatever format: a size above zero, an orientation that exists, or
// an error.
#include <cstdint>

#include "base/check.h"
#include "media/image.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto header = sparrow::read_header(std::as_bytes(std::span(data, size)));
  if (!header.ok()) {
    SPARROW_CHECK(!header.error().message.empty());
    return 0;
  }
  SPARROW_CHECK(header->width > 0 && header->height > 0);
  SPARROW_CHECK(header->orientation >= 1 && header->orientation <= 8);
  return 0;
}
