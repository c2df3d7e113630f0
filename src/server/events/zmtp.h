// SPDX-License-Identifier: Apache-2.0
// ZMTP 3: what ZeroMQ sockets say to each other over TCP, without encryption (its NULL mechanism). Bytes in
// and out; zmtp_peer.h moves them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sparrow::zmtp {

inline constexpr size_t kGreetingBytes = 64;

// What both sides send first, without waiting for the other.
std::string greeting();
// Version 3 or later, NULL.
Status check_greeting(std::string_view bytes);

struct Frame {
  bool more = false;     // another frame of the same message follows
  bool command = false;  // for the protocol, not for its user
  std::string body;
};

void append_frame(std::string& out, std::string_view body, bool more);

// Frames out of bytes, in whatever pieces they come.
class FrameReader {
 public:
  // Nobody sends us more than a topic or a number.
  static constexpr size_t kMaxBody = size_t{64} << 10;

  void add(std::string_view bytes) { bytes_ += bytes; }
  // nullopt: the next one is not whole yet.
  Result<std::optional<Frame>> next();
  // The first bytes, before there are frames; nullopt: not there yet.
  std::optional<std::string> take(size_t bytes);

 private:
  std::string bytes_;
};

// A command's name and the rest of it. nullopt: it is none.
struct Command {
  std::string_view name, body;
};
std::optional<Command> read_command(std::string_view body);

// The first command of both sides: what kind of socket this is.
std::string ready(std::string_view socket_type);
Result<std::string> socket_type_of(const Command& ready);
// The answer to a PING.
std::string pong(std::string_view ping_body);

}  // namespace sparrow::zmtp
