// SPDX-License-Identifier: Apache-2.0
// Frames: what ranks write to each other's sockets. Eight bytes, little endian: length of the rest, protocol,
// type, 0; then the payload. Nothing in one is trusted: lengths are limited before memory is taken.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "comm/control_link.h"
#include "comm/net/socket.h"

namespace sparrow {

inline constexpr uint8_t kProtocol = 1;

enum class FrameType : uint8_t {
  kHello = 1,  // who I am, and what for I come
  kRefuse,     // why the instance does not start
  kMemory,     // the node's shared memory follows
  kWorld,      // all are there
  kExchange,   // my bytes for all
  kPeers,      // everybody's
  kPing,
  kFail,     // a rank failed, and why
  kLeft,     // a rank said goodbye
  kMessage,  // to the followers of another node
  kReply,    // to rank 0
  kSlots,    // what a node's ranks put into a collective call
};

struct Frame {
  FrameType type;
  Bytes payload;
};

inline constexpr size_t kFrameHead = 8;
inline constexpr size_t kMaxGreeting = size_t{1} << 16;  // before all are there
inline constexpr size_t kMaxFrame = size_t{1} << 30;

Bytes make_frame(FrameType type, std::span<const std::byte> payload);
Status send_frame(const Fd& socket, FrameType type, std::span<const std::byte> payload,
                  const GiveUp& give_up);
Result<Frame> receive_frame(const Fd& socket, size_t max_payload, const GiveUp& give_up);

// Frames out of bytes as they come.
class FrameParser {
 public:
  void add(std::span<const std::byte> bytes);
  // Nullopt: more bytes are needed. After an error the stream is lost.
  Result<std::optional<Frame>> next();

 private:
  Bytes bytes_;
  size_t begin_ = 0;  // of what has not been handed out
};

// Fields of a payload, one after another.
class Packer {
 public:
  Packer& number(uint64_t value);
  Packer& text(std::string_view value);  // with its length
  Packer& raw(std::span<const std::byte> value);
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

// Reads them again. What is not there reads as 0 or empty, and complete() is false.
class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> bytes) : left_(bytes) {}

  uint64_t number();
  int small_number();  // fits into an int and is not negative
  std::string text();
  std::span<const std::byte> raw();
  bool more() const { return good_ && !left_.empty(); }
  // All fields were there, and nothing else was.
  bool complete() const { return good_ && left_.empty(); }

 private:
  std::span<const std::byte> left_;
  bool good_ = true;
};

}  // namespace sparrow
