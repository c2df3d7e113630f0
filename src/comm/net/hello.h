// SPDX-License-Identifier: Apache-2.0
// Hello: what a rank says of itself when it joins, and what must be the same on all.
#pragma once

#include <optional>
#include <string>

#include "comm/net/frame.h"
#include "comm/world.h"

namespace sparrow {

// What a connection is for.
enum class Purpose : uint8_t {
  kControl = 1,  // every rank to rank 0: liveness, exchange
  kMemory,       // a rank to the first of its node, which has the shared memory
  kMessages,     // the first rank of another node to rank 0: messages to its followers
  kCollective,   // a node's first rank of a communicator to the communicator's rank 0
};

struct Hello {
  Purpose purpose = Purpose::kControl;
  Grid grid;
  int local_world = 1;
  std::string host, build, config_digest, gpu_uuid;
  bool share_gpu = false;

  int node() const { return grid.rank / local_world; }
};

Hello hello_of(const WorldOptions& options, Purpose purpose);
Bytes pack(const Hello& hello);
Result<Hello> unpack_hello(std::span<const std::byte> bytes);

// Why `guest` cannot be a rank of host's instance: one line with both values.
std::optional<std::string> mismatch(const Hello& guest, const Hello& host);
// Why two ranks cannot be in one instance.
std::optional<std::string> conflict(const Hello& a, const Hello& b);

// "rank 3 at node7"
std::string name_of(const Hello& hello);

}  // namespace sparrow
