// SPDX-License-Identifier: Apache-2.0
// Any bytes as a PNG file: as they are, and with the checksums made right, which else stop most of them at
// the first chunk.
#include <zlib.h>

#include <cstdint>
#include <vector>

#include "media/format/byte_view.h"
#include "media/image_target.h"

namespace {

void mend_checksums(std::vector<uint8_t>& file) {
  const sparrow::ByteView view(std::as_bytes(std::span(file)));
  for (size_t at = 8; view.has(at, 12);) {
    const size_t length = view.be32(at);
    if (!view.has(at + 12, length)) return;
    const uLong sum = crc32(0, file.data() + at + 4, static_cast<uInt>(length + 4));
    for (int i = 0; i < 4; ++i) file[at + 8 + length + i] = static_cast<uint8_t>(sum >> (24 - 8 * i));
    at += 12 + length;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sparrow::try_image(std::as_bytes(std::span(data, size)));
  std::vector<uint8_t> mended(data, data + size);
  mend_checksums(mended);
  sparrow::try_image(std::as_bytes(std::span(mended)));
  return 0;
}
