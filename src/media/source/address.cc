// SPDX-License-Identifier: Apache-2.0
#include "media/source/address.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/check.h"

namespace sparrow {
namespace {

// IANA's registries of special addresses, and what clouds answer on.
struct Range {
  const char* first;
  int bits;
};
constexpr Range kNotPublicV4[] = {
    {"0.0.0.0", 8},         // this network; Linux takes it for loopback
    {"10.0.0.0", 8},        // private
    {"100.64.0.0", 10},     // shared by carriers; Alibaba's metadata
    {"127.0.0.0", 8},       // loopback
    {"168.63.129.16", 32},  // Azure's host
    {"169.254.0.0", 16},    // link-local; metadata of most clouds
    {"172.16.0.0", 12},     // private
    {"192.0.0.0", 24},      // protocols; Oracle's metadata
    {"192.0.2.0", 24},      // examples
    {"192.88.99.0", 24},    // relays to IPv6
    {"192.168.0.0", 16},    // private
    {"198.18.0.0", 15},     // benchmarks
    {"198.51.100.0", 24},   // examples
    {"203.0.113.0", 24},    // examples
    {"224.0.0.0", 4},       // multicast
    {"240.0.0.0", 4},       // reserved, broadcast
};
constexpr Range kGlobalV6{"2000::",
                          3};  // all else is loopback, local, mapped, translated, multicast, or nobody's
constexpr Range kNotPublicV6[] = {
    {"2001::", 23},      // protocols; Teredo, which stands for IPv4
    {"2001:db8::", 32},  // examples
    {"2002::", 16},      // 6to4, which stands for IPv4
    {"3fff::", 20},      // examples
};

bool is_in(const IpAddress& address, const Range& range) {
  const std::optional<IpAddress> first = IpAddress::parse(range.first);
  SPARROW_CHECK(first.has_value() && first->is_v6() == address.is_v6());
  for (int bit = 0; bit < range.bits; bit += 8) {
    const int shift = std::max(8 - (range.bits - bit), 0);
    const auto i = static_cast<size_t>(bit / 8);
    if (address.bytes()[i] >> shift != first->bytes()[i] >> shift) return false;
  }
  return true;
}

}  // namespace

IpAddress IpAddress::v4(const std::array<uint8_t, 4>& bytes) {
  IpAddress result;
  std::ranges::copy(bytes, result.bytes_.begin());
  return result;
}

IpAddress IpAddress::v6(const std::array<uint8_t, 16>& bytes) {
  IpAddress result;
  result.bytes_ = bytes;
  result.is_v6_ = true;
  return result;
}

std::optional<IpAddress> IpAddress::parse(const std::string& text) {
  IpAddress result;
  result.is_v6_ = text.find(':') != text.npos;
  if (::inet_pton(result.is_v6_ ? AF_INET6 : AF_INET, text.c_str(), result.bytes_.data()) != 1 ||
      text.find('\0') != text.npos)
    return std::nullopt;
  return result;
}

std::string IpAddress::text() const {
  char buffer[INET6_ADDRSTRLEN] = {};
  ::inet_ntop(is_v6_ ? AF_INET6 : AF_INET, bytes_.data(), buffer, sizeof buffer);
  return buffer;
}

bool is_public(const IpAddress& address) {
  const auto holds = [&](const Range& range) { return is_in(address, range); };
  if (!address.is_v6()) return std::ranges::none_of(kNotPublicV4, holds);
  return is_in(address, kGlobalV6) && std::ranges::none_of(kNotPublicV6, holds);
}

}  // namespace sparrow
