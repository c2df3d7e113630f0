// SPDX-License-Identifier: Apache-2.0
// ByteView: numbers in a foreign file. A byte past the end reads as zero, so that no header can lead a parser
// out of the file; who must know asks has().
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace sparrow {

class ByteView {
 public:
  explicit ByteView(std::span<const std::byte> bytes) : bytes_(bytes) {}

  size_t size() const { return bytes_.size(); }
  bool has(size_t at, size_t count) const { return at <= size() && count <= size() - at; }
  bool is(size_t at, std::string_view text) const {
    return has(at, text.size()) && std::memcmp(bytes_.data() + at, text.data(), text.size()) == 0;
  }
  // As much of it as there is.
  ByteView part(size_t at, size_t count) const {
    at = at < size() ? at : size();
    return ByteView(bytes_.subspan(at, count < size() - at ? count : size() - at));
  }
  std::span<const std::byte> bytes() const { return bytes_; }

  uint32_t u8(size_t at) const { return at < size() ? static_cast<uint32_t>(bytes_[at]) : 0; }
  uint32_t le16(size_t at) const { return u8(at) | u8(at + 1) << 8; }
  uint32_t le24(size_t at) const { return le16(at) | u8(at + 2) << 16; }
  uint32_t le32(size_t at) const { return le16(at) | le16(at + 2) << 16; }
  uint32_t be16(size_t at) const { return u8(at) << 8 | u8(at + 1); }
  uint32_t be32(size_t at) const { return be16(at) << 16 | be16(at + 2); }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace sparrow
