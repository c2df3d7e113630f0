// SPDX-License-Identifier: Apache-2.0
// WireWriter and WireReader: numbers as bytes and back. Integers take as many bytes as they need, seven bits
// each; the others are little-endian. A reader never reads past its bytes: what is missing or out of bounds
// reads as 0 and leaves it failed for good, so callers ask once, at the end.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sparrow {

class WireWriter {
 public:
  void byte(uint8_t value) { bytes_.push_back(static_cast<std::byte>(value)); }
  void number(uint64_t value) {
    for (; value >= 0x80; value >>= 7) byte(static_cast<uint8_t>(value | 0x80));
    byte(static_cast<uint8_t>(value));
  }
  void fixed32(uint32_t value) {
    for (int i = 0; i < 4; ++i) byte(static_cast<uint8_t>(value >> (8 * i)));
  }
  void fixed64(uint64_t value) {
    for (int i = 0; i < 8; ++i) byte(static_cast<uint8_t>(value >> (8 * i)));
  }
  void f64(double value) { fixed64(std::bit_cast<uint64_t>(value)); }
  void f32(float value) { fixed32(std::bit_cast<uint32_t>(value)); }
  void text(std::string_view value) {
    number(value.size());
    for (const char c : value) byte(static_cast<uint8_t>(c));
  }
  void ids(std::span<const int32_t> values) {
    number(values.size());
    for (const int32_t value : values) number(static_cast<uint64_t>(value));
  }

  void append(std::span<const std::byte> more) { bytes_.insert(bytes_.end(), more.begin(), more.end()); }

  std::span<const std::byte> bytes() const { return bytes_; }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  uint8_t byte() { return static_cast<uint8_t>(fixed(1)); }
  // At most `most`.
  uint64_t number(uint64_t most = std::numeric_limits<uint64_t>::max()) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint64_t bits = byte();
      // The tenth byte has room for one bit.
      if (shift == 63 && bits > 1) break;
      value |= (bits & 0x7f) << shift;
      if (bits < 0x80) return value <= most ? value : fail();
    }
    return fail();
  }
  // A number below `end`; none where that is not above 0.
  int32_t below(int64_t end) { return end > 0 ? static_cast<int32_t>(number(end - 1)) : int32_t(fail()); }
  // How many of something follow, each with a byte at least: memory for them is bounded by the message.
  size_t count(size_t most = std::numeric_limits<int32_t>::max()) {
    return static_cast<size_t>(number(std::min(most, bytes_.size())));
  }
  uint32_t fixed32() { return static_cast<uint32_t>(fixed(4)); }
  uint64_t fixed64() { return fixed(8); }
  double f64() { return std::bit_cast<double>(fixed(8)); }
  float f32() { return std::bit_cast<float>(fixed32()); }
  std::string text() {
    std::string value(count(), '\0');
    for (char& c : value) c = static_cast<char>(byte());
    return value;
  }
  std::vector<int32_t> ids(int64_t end) {
    std::vector<int32_t> values(count());
    for (int32_t& value : values) value = below(end);
    return values;
  }

  // So many numbers as they lie in memory.
  void floats(size_t size, std::vector<float>& values) {
    if (size > bytes_.size() / sizeof(float)) return static_cast<void>(fail());
    values.resize(size);
    std::memcpy(values.data(), bytes_.data(), size * sizeof(float));
    bytes_ = bytes_.subspan(size * sizeof(float));
  }

  std::span<const std::byte> rest() const { return bytes_; }

  // Callers check what one number cannot say.
  void require(bool holds) { failed_ |= !holds; }
  bool failed() const { return failed_; }
  // All was there, and nothing is left.
  bool complete() const { return !failed_ && bytes_.empty(); }

 private:
  uint64_t fail() {
    failed_ = true;
    bytes_ = {};
    return 0;
  }
  uint64_t fixed(size_t size) {
    if (bytes_.size() < size) return fail();
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i) value |= static_cast<uint64_t>(bytes_[i]) << (8 * i);
    bytes_ = bytes_.subspan(size);
    return value;
  }

  std::span<const std::byte> bytes_;
  bool failed_ = false;
};

}  // namespace sparrow
