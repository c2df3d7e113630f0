// SPDX-License-Identifier: Apache-2.0
// Locks this process up for good: what is left are its memory, its processor and one socket. Nothing here
// needs privileges or user namespaces, so it holds in any container and for any user.
#pragma once

#include <cstdint>
#include <optional>

namespace sparrow {

struct Confinement {
  int socket = -1;            // the one descriptor that may be read and written
  uint64_t memory_bytes = 0;  // that may be taken from now on
  uint64_t cpu_seconds = 0;
};

struct ConfineFault {
  const char* step;
  int error_number;
};

// Descriptors that others left open are closed by whoever starts the process. Call it on the only thread.
std::optional<ConfineFault> confine(const Confinement& limits);

// No capabilities, and no way to get any: a server that runs as root need not have a decoder that does. Makes
// system calls only. False: errno says why.
bool drop_privileges();

// Sanitizers read files, start threads and map terabytes. Built with one, a worker may do all that; it still
// has no network and starts no program.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kConfinedStrictly = false;
#else
inline constexpr bool kConfinedStrictly = true;
#endif

}  // namespace sparrow
