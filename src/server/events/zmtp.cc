// SPDX-License-Identifier: Apache-2.0
#include "server/events/zmtp.h"

#include <algorithm>

#include "base/strf.h"

namespace sparrow::zmtp {
namespace {

constexpr uint8_t kMore = 1, kLong = 2, kCommand = 4;
constexpr size_t kMechanismAt = 12, kMechanismBytes = 20;

Error corrupt(std::string message) {
  return Error{Errc::kCorrupt, std::move(message)};
}

void append_number(std::string& out, uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) out += static_cast<char>(value >> shift);
}

uint64_t read_number(std::string_view bytes) {
  uint64_t value = 0;
  for (const char c : bytes) value = value << 8 | static_cast<uint8_t>(c);
  return value;
}

void append_frame(std::string& out, std::string_view body, uint8_t flags) {
  const bool is_long = body.size() > 255;
  out += static_cast<char>(flags | (is_long ? kLong : 0));
  append_number(out, body.size(), is_long ? 8 : 1);
  out += body;
}

std::string command(std::string_view name, std::string_view body) {
  std::string whole(1, static_cast<char>(name.size()));
  whole += name;
  whole += body;
  std::string out;
  append_frame(out, whole, kCommand);
  return out;
}

}  // namespace

std::string greeting() {
  std::string bytes(kGreetingBytes, '\0');
  bytes[0] = '\xff';
  bytes[9] = '\x7f';
  bytes[10] = 3;
  bytes[11] = 1;
  bytes.replace(kMechanismAt, 4, "NULL");
  return bytes;
}

Status check_greeting(std::string_view bytes) {
  if (bytes.size() != kGreetingBytes || bytes[0] != '\xff' || bytes[9] != '\x7f')
    return corrupt("not a ZMTP peer");
  if (const int version = static_cast<uint8_t>(bytes[10]); version < 3)
    return corrupt(strf("ZMTP version {}: 3 or later is needed", version));
  if (bytes.substr(kMechanismAt, kMechanismBytes) !=
      std::string_view(greeting()).substr(kMechanismAt, kMechanismBytes))
    return corrupt("a ZMTP mechanism other than NULL");
  return Ok{};
}

void append_frame(std::string& out, std::string_view body, bool more) {
  append_frame(out, body, more ? kMore : uint8_t{0});
}

Result<std::optional<Frame>> FrameReader::next() {
  if (bytes_.empty()) return std::optional<Frame>();
  const auto flags = static_cast<uint8_t>(bytes_[0]);
  if ((flags & ~(kMore | kLong | kCommand)) != 0 || ((flags & kCommand) != 0 && (flags & kMore) != 0))
    return corrupt(strf("a frame with flags {}", flags));
  const size_t head = (flags & kLong) != 0 ? 9 : 2;
  if (bytes_.size() < head) return std::optional<Frame>();
  const uint64_t size = read_number(std::string_view(bytes_).substr(1, head - 1));
  if (size > kMaxBody) return corrupt(strf("a frame of {} bytes: {} is the limit", size, kMaxBody));
  if (bytes_.size() < head + size) return std::optional<Frame>();
  Frame frame{
      .more = (flags & kMore) != 0, .command = (flags & kCommand) != 0, .body = bytes_.substr(head, size)};
  bytes_.erase(0, head + size);
  return std::optional(std::move(frame));
}

std::optional<std::string> FrameReader::take(size_t bytes) {
  if (bytes_.size() < bytes) return std::nullopt;
  std::string taken = bytes_.substr(0, bytes);
  bytes_.erase(0, bytes);
  return taken;
}

std::optional<Command> read_command(std::string_view body) {
  if (body.empty()) return std::nullopt;
  const size_t size = static_cast<uint8_t>(body[0]);
  if (body.size() < 1 + size) return std::nullopt;
  return Command{body.substr(1, size), body.substr(1 + size)};
}

std::string ready(std::string_view socket_type) {
  std::string properties;
  const auto property = [&](std::string_view name, std::string_view value) {
    properties += static_cast<char>(name.size());
    properties += name;
    append_number(properties, value.size(), 4);
    properties += value;
  };
  property("Socket-Type", socket_type);
  property("Identity", "");
  return command("READY", properties);
}

Result<std::string> socket_type_of(const Command& ready) {
  const auto is_name = [](std::string_view name) {  // in whatever case
    constexpr std::string_view kName = "socket-type";
    return std::equal(name.begin(), name.end(), kName.begin(), kName.end(),
                      [](char a, char b) { return (a | 0x20) == (b | 0x20); });
  };
  if (ready.name != "READY") return corrupt(strf("a command of {} bytes before READY", ready.name.size()));
  for (std::string_view rest = ready.body; !rest.empty();) {
    const size_t name_end = 1 + static_cast<uint8_t>(rest[0]);
    if (rest.size() < name_end + 4) break;
    const uint64_t size = read_number(rest.substr(name_end, 4));
    if (rest.size() - name_end - 4 < size) break;
    if (is_name(rest.substr(1, name_end - 1))) return std::string(rest.substr(name_end + 4, size));
    rest.remove_prefix(name_end + 4 + size);
  }
  return corrupt("READY without a socket type");
}

std::string pong(std::string_view ping_body) {
  // Two bytes say how long the other side waits, then comes what it wants back.
  return command("PONG", ping_body.substr(std::min<size_t>(2, ping_body.size())));
}

}  // namespace sparrow::zmtp
