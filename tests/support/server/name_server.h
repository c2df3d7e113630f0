// SPDX-License-Identifier: Apache-2.0
// NameServer: a DNS server on loopback that changes its mind. What it says of a host is a list of answers,
// one for each lookup; the last one stays. Time to live is zero, as for whoever wants to be asked again.
#pragma once

#include <map>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "media/source/address.h"

namespace sparrow::test {

class NameServer {
 public:
  NameServer();
  ~NameServer();
  NameServer(const NameServer&) = delete;
  NameServer& operator=(const NameServer&) = delete;

  void answer(const std::string& host, std::vector<std::vector<IpAddress>> answers);
  int lookups() const;

  // Asks this server as a resolver does: a packet for IPv4, one for IPv6.
  Result<std::vector<IpAddress>> resolve(const std::string& host) const;

 private:
  void run();
  std::vector<uint8_t> reply_to(std::span<const uint8_t> query);
  std::vector<IpAddress> ask(const std::string& host, int type) const;

  int socket_ = -1, port_ = 0;
  mutable std::mutex mutex_;
  std::map<std::string, std::vector<std::vector<IpAddress>>> answers_;
  std::map<std::string, std::vector<IpAddress>> current_;  // of the lookup that is under way
  int lookups_ = 0;
  std::thread thread_;
};

}  // namespace sparrow::test
