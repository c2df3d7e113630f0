// SPDX-License-Identifier: Apache-2.0
#include "server/fetch/resolve.h"

#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/strf.h"

namespace sparrow {
namespace {

template <size_t kBytes>
std::array<uint8_t, kBytes> bytes_at(const void* from) {
  std::array<uint8_t, kBytes> bytes;
  std::memcpy(bytes.data(), from, kBytes);
  return bytes;
}

}  // namespace

Result<std::vector<IpAddress>> resolve_with_system(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(found, ::freeaddrinfo);
  if (failed != 0)
    return Error{Errc::kInvalidArgument, strf("host {} cannot be found: {}", host, ::gai_strerror(failed))};
  std::vector<IpAddress> addresses;
  for (const addrinfo* entry = list.get(); entry; entry = entry->ai_next) {
    if (entry->ai_family == AF_INET)
      addresses.push_back(
          IpAddress::v4(bytes_at<4>(&reinterpret_cast<const sockaddr_in*>(entry->ai_addr)->sin_addr)));
    if (entry->ai_family == AF_INET6)
      addresses.push_back(
          IpAddress::v6(bytes_at<16>(&reinterpret_cast<const sockaddr_in6*>(entry->ai_addr)->sin6_addr)));
  }
  return addresses;
}

}  // namespace sparrow
