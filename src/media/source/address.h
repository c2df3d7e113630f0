// SPDX-License-Identifier: Apache-2.0
// IP addresses, and which of them belong to the public Internet.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace sparrow {

class IpAddress {
 public:
  // Of a dotted quad or of RFC 4291's spellings; nullopt for all else ("127.1", "0177.0.0.1", "::1%lo").
  static std::optional<IpAddress> parse(const std::string& text);
  static IpAddress v4(const std::array<uint8_t, 4>& bytes);
  static IpAddress v6(const std::array<uint8_t, 16>& bytes);

  bool is_v6() const { return is_v6_; }
  const std::array<uint8_t, 16>& bytes() const { return bytes_; }  // of an IPv4 address the first four
  std::string text() const;
  friend bool operator==(const IpAddress&, const IpAddress&) = default;

 private:
  std::array<uint8_t, 16> bytes_{};
  bool is_v6_ = false;
};

// False for every address that may lead back to this machine, its network or its cloud: private, loopback,
// link-local, metadata, shared (CGNAT), multicast, reserved, and IPv6 addresses that stand for IPv4 ones.
bool is_public(const IpAddress& address);

}  // namespace sparrow
