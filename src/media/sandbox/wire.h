// SPDX-License-Identifier: Apache-2.0
// What the two sides of a worker agree on. A worker has three things: a socket of whole messages, memory that
// it shares with the server, and its processor. Jobs and results lie in the memory; messages say how long
// they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace sparrow {

// Descriptors of a worker. Standard input, output and error are /dev/null.
inline constexpr int kWorkerSocket = 3, kWorkerMemory = 4;

// The shared memory: options and bytes of a job, then, from `input_capacity` on, what comes of it.
struct WorkerSetup {
  uint64_t input_capacity = 0, output_capacity = 0;
  uint64_t memory_bytes = 0;  // that the worker may take beside the shared memory
  uint64_t cpu_seconds = 0;   // of its whole life

  uint64_t shared_bytes() const { return input_capacity + output_capacity; }
};

// The worker's first message: that it is locked up, or what could not be done.
struct WorkerHello {
  uint32_t ready = 0;
  int32_t error_number = 0;
  char step[56] = {};  // ends with a zero
};

struct JobMessage {
  uint64_t id = 0, option_bytes = 0, input_bytes = 0, max_output_bytes = 0;
};

struct ReplyMessage {
  uint64_t id = 0;
  uint64_t output_bytes = 0;  // of the result, or of the error's text
  int32_t error = -1;         // an Errc; -1: none
  int32_t unused = 0;
};
inline constexpr size_t kMaxErrorText = 512;

static_assert(std::is_trivially_copyable_v<WorkerSetup> && std::is_trivially_copyable_v<WorkerHello> &&
              std::is_trivially_copyable_v<JobMessage> && std::is_trivially_copyable_v<ReplyMessage>);

}  // namespace sparrow
