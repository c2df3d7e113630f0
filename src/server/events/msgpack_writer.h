// SPDX-License-Identifier: Apache-2.0
// MsgpackWriter: MessagePack out, each value in its shortest form. The caller keeps it well formed: as many
// values after begin_array() and begin_map() as they say.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace sparrow {

class MsgpackWriter {
 public:
  void nil() { byte(0xc0); }

  void integer(int64_t value) {
    if (value >= 0) return unsigned_integer(static_cast<uint64_t>(value));
    const auto bits = static_cast<uint64_t>(value);
    if (value >= -32)
      byte(static_cast<uint8_t>(bits));
    else if (value >= INT8_MIN)
      tagged(0xd0, bits, 1);
    else if (value >= INT16_MIN)
      tagged(0xd1, bits, 2);
    else if (value >= INT32_MIN)
      tagged(0xd2, bits, 4);
    else
      tagged(0xd3, bits, 8);
  }

  void unsigned_integer(uint64_t value) {
    if (value < 128)
      byte(static_cast<uint8_t>(value));
    else
      sized(0xcc, value);
  }

  void number(double value) { tagged(0xcb, std::bit_cast<uint64_t>(value), 8); }

  void string(std::string_view text) {
    if (text.size() < 32)
      byte(static_cast<uint8_t>(0xa0 | text.size()));
    else
      sized(0xd9, text.size());
    out_ += text;
  }

  void begin_array(size_t size) {
    size < 16 ? byte(static_cast<uint8_t>(0x90 | size)) : sized_from_16(0xdc, size);
  }
  void begin_map(size_t size) {
    size < 16 ? byte(static_cast<uint8_t>(0x80 | size)) : sized_from_16(0xde, size);
  }

  std::string take() { return std::exchange(out_, {}); }

 private:
  void byte(uint8_t value) { out_ += static_cast<char>(value); }
  void tagged(int tag, uint64_t bits, int bytes) {
    byte(static_cast<uint8_t>(tag));
    for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) byte(static_cast<uint8_t>(bits >> shift));
  }
  // Tags for 1, 2, 4 and 8 bytes follow each other.
  void sized(int tag, uint64_t value) {
    if (value <= UINT8_MAX) return tagged(tag, value, 1);
    value <= UINT32_MAX ? sized_from_16(tag + 1, value) : tagged(tag + 3, value, 8);
  }
  void sized_from_16(int tag, uint64_t value) {
    value <= UINT16_MAX ? tagged(tag, value, 2) : tagged(tag + 1, value, 4);
  }

  std::string out_;
};

}  // namespace sparrow
