// SPDX-License-Identifier: Apache-2.0
#include "comm/net/frame.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/check.h"
#include "base/strf.h"

namespace sparrow {
namespace {

struct Head {
  size_t length;
  FrameType type;
};

std::array<std::byte, kFrameHead> make_head(FrameType type, size_t length) {
  SPARROW_CHECK_LE(length, kMaxFrame);
  std::array<std::byte, kFrameHead> head{};
  for (size_t i = 0; i < 4; ++i) head[i] = static_cast<std::byte>(length >> 8 * i);
  head[4] = std::byte{kProtocol};
  head[5] = static_cast<std::byte>(type);
  return head;
}

Result<Head> parse_head(std::span<const std::byte, kFrameHead> bytes, size_t max_payload) {
  const auto byte = [&](size_t i) { return std::to_integer<uint32_t>(bytes[i]); };
  if (byte(4) != kProtocol)
    return Error{Errc::kCorrupt, strf("a frame of protocol {}, and not {}", byte(4), kProtocol)};
  const bool known = byte(5) >= static_cast<uint32_t>(FrameType::kHello) &&
                     byte(5) <= static_cast<uint32_t>(FrameType::kSlots) && byte(6) == 0 && byte(7) == 0;
  if (!known) return Error{Errc::kCorrupt, strf("a frame of unknown type {}", byte(5))};
  const size_t length = byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
  if (length > max_payload)
    return Error{Errc::kCorrupt, strf("a frame of {} bytes; {} is the limit", length, max_payload)};
  return Head{length, static_cast<FrameType>(byte(5))};
}

}  // namespace

Bytes make_frame(FrameType type, std::span<const std::byte> payload) {
  const auto head = make_head(type, payload.size());
  Bytes frame(kFrameHead + payload.size());
  std::copy(payload.begin(), payload.end(), std::copy(head.begin(), head.end(), frame.begin()));
  return frame;
}

Status send_frame(const Fd& socket, FrameType type, std::span<const std::byte> payload,
                  const GiveUp& give_up) {
  return send_all(socket, make_frame(type, payload), give_up);
}

Result<Frame> receive_frame(const Fd& socket, size_t max_payload, const GiveUp& give_up) {
  std::array<std::byte, kFrameHead> bytes{};
  SPARROW_TRY(receive_all(socket, bytes, give_up));
  const Result<Head> head = parse_head(bytes, max_payload);
  if (!head.ok()) return Error{Errc::kCorrupt, peer_name(socket) + " sent " + head.error().message};
  Frame frame{.type = head->type, .payload = Bytes(head->length)};
  SPARROW_TRY(receive_all(socket, frame.payload, give_up));
  return frame;
}

void FrameParser::add(std::span<const std::byte> bytes) {
  if (begin_ > bytes_.size() / 2) {
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(begin_));
    begin_ = 0;
  }
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

Result<std::optional<Frame>> FrameParser::next() {
  const std::span<const std::byte> left = std::span(bytes_).subspan(begin_);
  if (left.size() < kFrameHead) return std::optional<Frame>();
  const Head head = SPARROW_TRY(parse_head(left.first<kFrameHead>(), kMaxFrame));
  if (left.size() - kFrameHead < head.length) return std::optional<Frame>();
  const auto payload = left.subspan(kFrameHead, head.length);
  Frame frame{.type = head.type, .payload = Bytes(payload.begin(), payload.end())};
  begin_ += kFrameHead + head.length;
  return std::optional(std::move(frame));
}

Packer& Packer::number(uint64_t value) {
  for (size_t i = 0; i < 8; ++i) bytes_.push_back(static_cast<std::byte>(value >> 8 * i));
  return *this;
}

Packer& Packer::text(std::string_view value) {
  return raw(std::as_bytes(std::span(value)));
}

Packer& Packer::raw(std::span<const std::byte> value) {
  number(value.size());
  bytes_.insert(bytes_.end(), value.begin(), value.end());
  return *this;
}

uint64_t Unpacker::number() {
  if (left_.size() < 8) {
    good_ = false;
    left_ = {};
    return 0;
  }
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) value |= std::to_integer<uint64_t>(left_[i]) << 8 * i;
  left_ = left_.subspan(8);
  return value;
}

int Unpacker::small_number() {
  const uint64_t value = number();
  if (value > static_cast<uint64_t>(std::numeric_limits<int>::max())) good_ = false;
  return good_ ? static_cast<int>(value) : 0;
}

std::span<const std::byte> Unpacker::raw() {
  const uint64_t length = number();
  if (length > left_.size()) good_ = false;
  if (!good_) return {};
  const auto value = left_.first(static_cast<size_t>(length));
  left_ = left_.subspan(static_cast<size_t>(length));
  return value;
}

std::string Unpacker::text() {
  const auto bytes = raw();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace sparrow
