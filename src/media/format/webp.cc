// SPDX-License-Identifier: Apache-2.0
// WebP by libwebp, lossy and lossless; of an animation the first frame. The container is walked here: its
// chunks say where that frame lies.
#include <webp/decode.h>

#include <cstring>
#include <vector>

#include "base/strf.h"
#include "media/format/formats.h"

namespace sparrow {
namespace {

constexpr size_t kFirstChunk = 12, kChunkHead = 8, kFrameHead = 16;

struct WebpFrame {
  int canvas_width = 0, canvas_height = 0;
  int x = 0, y = 0, width = 0, height = 0;  // of the frame on the canvas
  ByteView bytes;                           // what libwebp decodes
  int orientation = 1;
};

// A chunk begins at an even place.
size_t after_chunk(ByteView file, size_t at) {
  const size_t length = file.le32(at + 4);
  return at + kChunkHead + length + (length & 1);
}

// The size in the first bytes of a lossy or lossless bitstream.
bool read_bitstream_size(ByteView file, size_t at, WebpFrame& frame) {
  const size_t data = at + kChunkHead;
  if (file.is(at, "VP8 ") && file.is(data + 3, "\x9d\x01\x2a")) {
    frame.width = static_cast<int>(file.le16(data + 6) & 0x3fff);
    frame.height = static_cast<int>(file.le16(data + 8) & 0x3fff);
  } else if (file.is(at, "VP8L") && file.u8(data) == 0x2f) {
    frame.width = static_cast<int>((file.le32(data + 1) & 0x3fff) + 1);
    frame.height = static_cast<int>((file.le32(data + 1) >> 14 & 0x3fff) + 1);
  }
  return frame.width > 0 && frame.height > 0;
}

// An animation's frame: its place, then chunks of its own.
void read_animation_frame(ByteView file, size_t at, WebpFrame& frame) {
  const size_t data = at + kChunkHead, length = file.le32(at + 4);
  frame.x = static_cast<int>(file.le24(data) * 2);
  frame.y = static_cast<int>(file.le24(data + 3) * 2);
  frame.width = static_cast<int>(file.le24(data + 6) + 1);
  frame.height = static_cast<int>(file.le24(data + 9) + 1);
  frame.bytes = file.part(data + kFrameHead, length < kFrameHead ? 0 : length - kFrameHead);
}

Result<WebpFrame> find_frame(ByteView file) {
  WebpFrame frame{.bytes = file};
  if (!file.is(kFirstChunk, "VP8X")) {
    if (!read_bitstream_size(file, kFirstChunk, frame))
      return corrupt_image(ImageFormat::kWebp, "it has no frame header");
    frame.canvas_width = frame.width, frame.canvas_height = frame.height;
    return frame;
  }
  const size_t data = kFirstChunk + kChunkHead;
  if (!file.has(data, 10)) return corrupt_image(ImageFormat::kWebp, "it ends early");
  const bool animated = file.u8(data) & 0x02;
  frame.canvas_width = static_cast<int>(file.le24(data + 4) + 1);
  frame.canvas_height = static_cast<int>(file.le24(data + 7) + 1);
  for (size_t at = after_chunk(file, kFirstChunk); file.has(at, kChunkHead); at = after_chunk(file, at)) {
    if (animated && frame.width == 0 && file.is(at, "ANMF")) read_animation_frame(file, at, frame);
    if (file.is(at, "EXIF"))
      frame.orientation = exif_orientation(file.part(at + kChunkHead, file.le32(at + 4)));
  }
  if (!animated) frame.width = frame.canvas_width, frame.height = frame.canvas_height;
  if (frame.width == 0) return corrupt_image(ImageFormat::kWebp, "it has no frame");
  if (int64_t{frame.x} + frame.width > frame.canvas_width ||
      int64_t{frame.y} + frame.height > frame.canvas_height)
    return corrupt_image(ImageFormat::kWebp, "its first frame leaves the canvas");
  return frame;
}

const char* what(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_OUT_OF_MEMORY:
      return "there is no memory";
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED:
      return "it ends early";
    default:
      return "its bitstream is broken";
  }
}

}  // namespace

Result<ImageHeader> read_webp_header(ByteView file) {
  const WebpFrame frame = SPARROW_TRY(find_frame(file));
  return ImageHeader{.format = ImageFormat::kWebp,
                     .width = frame.canvas_width,
                     .height = frame.canvas_height,
                     .orientation = frame.orientation};
}

Result<Image> decode_webp(ByteView file, const ImageHeader& header) {
  const WebpFrame frame = SPARROW_TRY(find_frame(file));
  const auto* data = reinterpret_cast<const uint8_t*>(frame.bytes.bytes().data());
  const size_t size = frame.bytes.size();
  WebPDecoderConfig config;
  if (!WebPInitDecoderConfig(&config)) return corrupt_image(ImageFormat::kWebp, "libwebp is another version");
  const VP8StatusCode found = WebPGetFeatures(data, size, &config.input);
  if (found != VP8_STATUS_OK) return corrupt_image(ImageFormat::kWebp, what(found));
  if (config.input.width != frame.width || config.input.height != frame.height || config.input.has_animation)
    return corrupt_image(ImageFormat::kWebp, "it has two sizes");

  const bool whole = frame.width == header.width && frame.height == header.height;
  const bool opaque = whole && !config.input.has_alpha;
  const size_t channels = opaque ? 3 : 4, pixels = size_t(header.width) * header.height;
  Image image{.width = header.width, .height = header.height};
  image.rgb.resize(pixels * channels);  // zeros: what no frame covers is transparent
  const size_t stride = channels * header.width, begin = frame.y * stride + frame.x * channels;
  config.output.colorspace = opaque ? MODE_RGB : MODE_RGBA;
  config.output.is_external_memory = 1;
  config.output.u.RGBA = {
      .rgba = image.rgb.data() + begin, .stride = static_cast<int>(stride), .size = image.rgb.size() - begin};
  const VP8StatusCode status = WebPDecode(data, size, &config);
  WebPFreeDecBuffer(&config.output);
  if (status != VP8_STATUS_OK) return corrupt_image(ImageFormat::kWebp, what(status));
  if (!opaque) {
    lay_over_white(image.rgb.data(), pixels, image.rgb.data());
    image.rgb.resize(pixels * 3);
  }
  return image;
}

}  // namespace sparrow
