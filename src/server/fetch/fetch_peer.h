// SPDX-License-Identifier: Apache-2.0
// FetchPeer: a connection to somebody else's server. Its calls wait, but never past the deadline.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <string_view>

#include "base/files/fd.h"
#include "base/result.h"
#include "media/source/address.h"
#include "server/http/transport.h"

namespace sparrow {

// When a fetch ends, whatever it is doing.
struct FetchEnd {
  std::chrono::steady_clock::time_point deadline;
  const std::atomic<bool>* cancelled = nullptr;

  // Nothing yet, or why it must end.
  Status check() const;
};

class FetchPeer {
 public:
  // Connects to the first of the addresses that answers, and to no other.
  static Result<FetchPeer> connect(std::span<const IpAddress> addresses, uint16_t port, const FetchEnd& end);

  // From now on in TLS; `host` must prove itself.
  Status secure(const TlsTrust& trust, const std::string& host, bool is_address);
  Status send(std::string_view bytes);
  // 0: the other side has closed.
  Result<size_t> read(std::span<char> into);

 private:
  FetchPeer(Fd socket, const FetchEnd& end);
  Status wait(Transport::Io wanted) const;

  Fd socket_;
  FetchEnd end_;
  std::unique_ptr<Transport> transport_;
};

}  // namespace sparrow
