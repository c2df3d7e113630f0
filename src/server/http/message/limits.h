// SPDX-License-Identifier: Apache-2.0
// What a peer may ask of the HTTP layer, in bytes and in time. Each is checked before memory is spent on it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace sparrow {

struct HttpLimits {
  size_t header_bytes = 32 << 10;  // request line and all fields
  int header_fields = 100;
  size_t target_bytes = 8 << 10;
  size_t body_bytes = size_t{32} << 20;
  size_t all_bodies_bytes = size_t{1} << 30;  // of all requests that are being read or answered
  size_t pipelined_bytes = 64 << 10;          // read ahead while a request is being answered
  int connections = 16384;  // beyond it the one idle for longest is closed, or the new one if none is idle

  std::chrono::milliseconds header_time{10'000};  // connect or first byte -> end of the head; TLS included
  std::chrono::milliseconds body_time{30'000};    // end of the head -> end of the body, plus its size / rate
  std::chrono::milliseconds idle_time{75'000};    // between two requests of a connection
  std::chrono::milliseconds write_time{30'000};   // for one write to the peer, plus its size / rate
  int64_t bytes_per_second = 16 << 10;            // the slowest peer that is waited for
  std::chrono::milliseconds linger_time{2'000};   // for a peer to read a refusal before the close

  Status validate() const;
};

}  // namespace sparrow
