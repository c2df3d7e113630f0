// SPDX-License-Identifier: Apache-2.0
#include "comm/shared/ring.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "base/check.h"

namespace sparrow {
namespace {

constexpr size_t kLength = 8;  // bytes of a message's length, before it

std::array<std::byte, kLength> length_bytes(size_t length) {
  std::array<std::byte, kLength> bytes{};
  for (size_t i = 0; i < kLength; ++i) bytes[i] = static_cast<std::byte>(length >> 8 * i);
  return bytes;
}

size_t length_of(std::span<const std::byte, kLength> bytes) {
  size_t length = 0;
  for (size_t i = 0; i < kLength; ++i) length |= std::to_integer<size_t>(bytes[i]) << 8 * i;
  return length;
}

}  // namespace

size_t Ring::bytes_for(size_t capacity) {
  return sizeof(Head) + capacity;
}

Ring::Ring(std::byte* memory, size_t capacity, int first_reader, int end_reader)
    : head_(*std::launder(reinterpret_cast<Head*>(memory))),
      data_(memory + sizeof(Head)),
      capacity_(static_cast<uint32_t>(capacity)),
      first_reader_(first_reader),
      end_reader_(end_reader) {
  SPARROW_CHECK(std::has_single_bit(capacity) && capacity <= size_t{1} << 30);
  SPARROW_CHECK_LE(end_reader, kMaxReaders);
}

uint32_t Ring::room() const {
  uint32_t behind = 0;
  for (int r = first_reader_; r < end_reader_; ++r) {
    const uint32_t read = head_.readers[static_cast<size_t>(r)].read.load(std::memory_order_seq_cst);
    behind = std::max(behind, position_ - read);
  }
  return capacity_ - behind;
}

bool Ring::put(std::span<const std::byte> bytes, const GiveUp& give_up) {
  while (!bytes.empty()) {
    if (room() == 0) {
      head_.written.set(position_);
      head_.writer_waits.store(1, std::memory_order_seq_cst);
      const bool waited = patience_.wait(
          head_.freed, [&] { return room() > 0; }, give_up);
      head_.writer_waits.store(0, std::memory_order_seq_cst);
      if (!waited) return false;
    }
    const size_t n = std::min<size_t>(bytes.size(), room());
    copy_in(position_, bytes.first(n));
    position_ += static_cast<uint32_t>(n);
    bytes = bytes.subspan(n);
  }
  return true;
}

bool Ring::write(std::span<const std::byte> message, const GiveUp& give_up) {
  if (!put(length_bytes(message.size()), give_up) || !put(message, give_up)) return false;
  head_.written.set(position_);
  return true;
}

uint32_t Ring::ready(int reader) const {
  return head_.written.value.load(std::memory_order_seq_cst) -
         head_.readers[static_cast<size_t>(reader)].read.load(std::memory_order_relaxed);
}

bool Ring::wait(int reader, const GiveUp& give_up) {
  return patience_.wait(
      head_.written, [&] { return ready(reader) > 0; }, give_up);
}

bool Ring::get(int reader, std::span<std::byte> bytes, const GiveUp& give_up) {
  std::atomic<uint32_t>& read = head_.readers[static_cast<size_t>(reader)].read;
  while (!bytes.empty()) {
    const uint32_t at = read.load(std::memory_order_relaxed);
    const auto ready = [&] { return head_.written.value.load(std::memory_order_seq_cst) - at; };
    if (!patience_.wait(
            head_.written, [&] { return ready() > 0; }, give_up))
      return false;
    const size_t n = std::min<size_t>(bytes.size(), ready());
    copy_out(at, bytes.first(n));
    advance(reader, static_cast<uint32_t>(n));
    bytes = bytes.subspan(n);
  }
  return true;
}

bool Ring::read(int reader, Bytes& message, const GiveUp& give_up) {
  std::array<std::byte, kLength> length{};
  if (!get(reader, length, give_up)) return false;
  message.resize(length_of(length));
  return get(reader, message, give_up);
}

void Ring::drain(int reader, Bytes& bytes) {
  const uint32_t at = head_.readers[static_cast<size_t>(reader)].read.load(std::memory_order_relaxed);
  const uint32_t n = ready(reader);
  if (n == 0) return;
  const size_t before = bytes.size();
  bytes.resize(before + n);
  copy_out(at, std::span(bytes).subspan(before));
  advance(reader, n);
}

bool Ring::take(Bytes& bytes, Bytes& message) {
  if (bytes.size() < kLength) return false;
  const size_t length = length_of(std::span<const std::byte>(bytes).first<kLength>());
  if (bytes.size() - kLength < length) return false;
  const auto end = bytes.begin() + static_cast<std::ptrdiff_t>(kLength + length);
  message.assign(bytes.begin() + kLength, end);
  bytes.erase(bytes.begin(), end);
  return true;
}

void Ring::advance(int reader, uint32_t bytes) {
  head_.readers[static_cast<size_t>(reader)].read.fetch_add(bytes, std::memory_order_seq_cst);
  if (head_.writer_waits.load(std::memory_order_seq_cst) != 0) head_.freed.add(1);
}

void Ring::copy_in(uint32_t at, std::span<const std::byte> bytes) {
  const uint32_t begin = at & (capacity_ - 1);
  const size_t first = std::min<size_t>(bytes.size(), capacity_ - begin);
  std::memcpy(data_ + begin, bytes.data(), first);
  std::memcpy(data_, bytes.data() + first, bytes.size() - first);
}

void Ring::copy_out(uint32_t at, std::span<std::byte> bytes) const {
  const uint32_t begin = at & (capacity_ - 1);
  const size_t first = std::min<size_t>(bytes.size(), capacity_ - begin);
  std::memcpy(bytes.data(), data_ + begin, first);
  std::memcpy(bytes.data() + first, data_, bytes.size() - first);
}

}  // namespace sparrow
