// SPDX-License-Identifier: Apache-2.0
// What every Communicator must do: random calls whose results a scalar model knows. Each rank runs the same
// cases from the same seed and judges its own results.
#pragma once

#include <cstdint>
#include <string>

#include "comm/communicator.h"

namespace sparrow {

// Runs `calls` random calls; empty, or what was wrong first. `hash`, where given, takes in the bytes of all
// sums: equal on every rank, and equal for every kind of communicator.
std::string run_comm_cases(Communicator& comm, uint64_t seed, int calls, uint64_t* hash = nullptr);

}  // namespace sparrow
