// SPDX-License-Identifier: Apache-2.0
// GIF: the first frame on its screen. What the frame leaves free is transparent, as browsers show it. Time
// and memory are bounded by the file's bytes and the screen's pixels, whatever the blocks say.
#include <algorithm>
#include <array>
#include <vector>

#include "media/format/formats.h"

namespace sparrow {
namespace {

constexpr uint32_t kImage = 0x2c, kExtension = 0x21, kGraphicControl = 0xf9;
constexpr int kMaxCodeBits = 12;

struct GifFrame {
  int screen_width = 0, screen_height = 0;
  int x = 0, y = 0, width = 0, height = 0;
  bool interlaced = false;
  int transparent = -1;  // an index of the palette
  size_t palette = 0;    // where it lies, and its colours
  uint32_t colours = 0;
  size_t data = 0;  // the code size, then blocks of codes
};

// Blocks: a length, that many bytes; the last one has none. Behind the last, or past the end.
size_t after_blocks(ByteView file, size_t at) {
  while (file.u8(at) != 0) at += 1 + file.u8(at);
  return at + 1;
}

// Behind the palette at `at`, where the flags say that there is one.
size_t note_palette(size_t at, uint32_t flags, GifFrame& frame) {
  if (!(flags & 0x80)) return at;
  frame.palette = at;
  frame.colours = 2u << (flags & 7);
  return at + size_t{3} * frame.colours;
}

Result<GifFrame> find_frame(ByteView file) {
  GifFrame frame{.screen_width = static_cast<int>(file.le16(6)),
                 .screen_height = static_cast<int>(file.le16(8))};
  size_t at = note_palette(13, file.u8(10), frame);
  for (; file.u8(at) == kExtension; at = after_blocks(file, at + 2)) {
    if (file.u8(at + 1) == kGraphicControl && file.u8(at + 2) >= 4)
      frame.transparent = file.u8(at + 3) & 1 ? static_cast<int>(file.u8(at + 6)) : -1;
  }
  if (file.u8(at) != kImage || !file.has(at, 10)) return corrupt_image(ImageFormat::kGif, "it has no frame");
  frame.x = static_cast<int>(file.le16(at + 1)), frame.y = static_cast<int>(file.le16(at + 3));
  frame.width = static_cast<int>(file.le16(at + 5)), frame.height = static_cast<int>(file.le16(at + 7));
  if (frame.width == 0 || frame.height == 0)
    return corrupt_image(ImageFormat::kGif, "its first frame has no size");
  const uint32_t flags = file.u8(at + 9);
  frame.interlaced = flags & 0x40;
  frame.data = note_palette(at + 10, flags, frame);
  if (frame.colours == 0) return corrupt_image(ImageFormat::kGif, "it has no palette");
  // Some writers leave the screen at zero, or smaller than the frame.
  frame.screen_width = std::max(frame.screen_width, frame.x + frame.width);
  frame.screen_height = std::max(frame.screen_height, frame.y + frame.height);
  return frame;
}

// Codes of growing length, lowest bit first, out of blocks.
class CodeReader {
 public:
  CodeReader(ByteView file, size_t at) : file_(file), at_(at) {}

  // -1: the blocks are at their end, or the file is.
  int next(int bits) {
    while (held_ < bits) {
      if (left_ == 0) {
        left_ = file_.u8(at_++);
        if (left_ == 0) return -1;
      }
      if (at_ >= file_.size()) return -1;
      hold_ |= file_.u8(at_++) << held_;
      held_ += 8, --left_;
    }
    const int code = static_cast<int>(hold_ & ((1u << bits) - 1));
    hold_ >>= bits, held_ -= bits;
    return code;
  }

 private:
  ByteView file_;
  size_t at_;
  uint32_t left_ = 0, hold_ = 0;
  int held_ = 0;
};

// The dictionary: a code stands for the string of another one and a last byte.
class Strings {
 public:
  explicit Strings(int clear) : clear_(clear) {
    for (int code = 0; code < clear; ++code)
      entries_[code] = {0, 1, static_cast<uint8_t>(code), static_cast<uint8_t>(code)};
    reset();
  }
  void reset() { size_ = clear_ + 2; }
  int size() const { return size_; }
  bool full() const { return size_ == 1 << kMaxCodeBits; }
  void add(int prefix, uint8_t last) {
    const Entry& before = entries_[prefix];
    entries_[size_++] = {static_cast<uint16_t>(prefix), static_cast<uint16_t>(before.length + 1),
                         before.first, last};
  }
  uint8_t first(int code) const { return entries_[code].first; }
  // As much of the string as fits into `room`; how long it is.
  size_t write(int code, uint8_t* out, size_t room) const {
    const size_t length = entries_[code].length;
    for (size_t i = length; i-- > 0; code = entries_[code].prefix)
      if (i < room) out[i] = entries_[code].last;
    return std::min(length, room);
  }

 private:
  struct Entry {
    uint16_t prefix, length;
    uint8_t first, last;
  };
  int clear_, size_;
  std::array<Entry, 1 << kMaxCodeBits> entries_;
};

// LZW until all of `pixels` are there.
Status decode_indices(ByteView file, size_t at, std::vector<uint8_t>& pixels) {
  const int code_size = static_cast<int>(file.u8(at));
  if (code_size < 1 || code_size > 8) return corrupt_image(ImageFormat::kGif, "its code size is wrong");
  const int clear = 1 << code_size, end = clear + 1;
  CodeReader codes(file, at + 1);
  Strings strings(clear);
  int bits = code_size + 1, previous = -1;
  for (size_t done = 0; done < pixels.size();) {
    const int code = codes.next(bits);
    if (code < 0 || code == end) return corrupt_image(ImageFormat::kGif, "it ends early");
    if (code == clear) {
      strings.reset();
      bits = code_size + 1, previous = -1;
      continue;
    }
    // A code may name the string that is about to be made of it, but no later one.
    if (code > strings.size() || (code == strings.size() && (previous < 0 || strings.full())))
      return corrupt_image(ImageFormat::kGif, "a code is out of range");
    if (previous >= 0 && !strings.full())
      strings.add(previous, strings.first(code == strings.size() ? previous : code));
    done += strings.write(code, pixels.data() + done, pixels.size() - done);
    if (strings.size() == 1 << bits && bits < kMaxCodeBits) ++bits;
    previous = code;
  }
  return Ok{};
}

// The row of the frame that the n-th stored row is.
class RowOrder {
 public:
  explicit RowOrder(const GifFrame& frame) : height_(frame.height), step_(frame.interlaced ? 8 : 1) {}
  int next() {
    const int row = row_;
    for (row_ += step_; row_ >= height_ && pass_ < 3;) {
      row_ = kFirst[pass_];
      step_ = kStep[pass_++];
    }
    return row;
  }

 private:
  static constexpr int kFirst[] = {4, 2, 1}, kStep[] = {8, 4, 2};
  int height_, step_, row_ = 0, pass_ = 0;
};

}  // namespace

Result<ImageHeader> read_gif_header(ByteView file) {
  const GifFrame frame = SPARROW_TRY(find_frame(file));
  return ImageHeader{.format = ImageFormat::kGif, .width = frame.screen_width, .height = frame.screen_height};
}

Result<Image> decode_gif(ByteView file, const ImageHeader& header) {
  const GifFrame frame = SPARROW_TRY(find_frame(file));
  std::vector<uint8_t> indices(size_t(frame.width) * frame.height);
  SPARROW_TRY(decode_indices(file, frame.data, indices));

  std::array<std::array<uint8_t, 3>, 256> palette{};
  for (uint32_t i = 0; i < frame.colours; ++i)
    for (uint32_t c = 0; c < 3; ++c) palette[i][c] = static_cast<uint8_t>(file.u8(frame.palette + 3 * i + c));
  if (frame.transparent >= 0) palette[frame.transparent] = {255, 255, 255};

  Image image{.width = header.width, .height = header.height};
  image.rgb.assign(size_t{3} * header.width * header.height, 255);
  RowOrder order(frame);
  for (int y = 0; y < frame.height; ++y) {
    const uint8_t* from = indices.data() + size_t(y) * frame.width;
    uint8_t* to = image.rgb.data() + 3 * (size_t(frame.y + order.next()) * header.width + frame.x);
    for (int x = 0; x < frame.width; ++x, to += 3) std::copy_n(palette[from[x]].data(), 3, to);
  }
  return image;
}

}  // namespace sparrow
