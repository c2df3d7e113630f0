// SPDX-License-Identifier: Apache-2.0
// EXIF: of all of it the orientation, which stands in the first directory of a TIFF structure.
#include "media/format/formats.h"

namespace sparrow {
namespace {

constexpr uint32_t kOrientationTag = 0x0112, kShort = 3, kLong = 4;

}  // namespace

int exif_orientation(ByteView exif) {
  using std::string_view_literals::operator""sv;
  if (exif.is(0, "Exif\0\0"sv)) exif = exif.part(6, exif.size());
  const bool little = exif.is(0, "II*\0"sv);
  if (!little && !exif.is(0, "MM\0*"sv)) return 1;
  const auto u16 = [&](size_t at) { return little ? exif.le16(at) : exif.be16(at); };
  const auto u32 = [&](size_t at) { return little ? exif.le32(at) : exif.be32(at); };
  const size_t directory = u32(4);
  const size_t entries = u16(directory);
  for (size_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + 12 * i;
    if (!exif.has(entry, 12)) break;
    if (u16(entry) != kOrientationTag) continue;
    const uint32_t type = u16(entry + 2);
    const uint32_t value = type == kShort ? u16(entry + 8) : type == kLong ? u32(entry + 8) : 1;
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

}  // namespace sparrow
