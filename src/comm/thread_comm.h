// SPDX-License-Identifier: Apache-2.0
// Communicators and control links between threads of one process, for tests of what runs on many ranks. CPU
// tensors.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/control_link.h"
#include "comm/grid.h"

namespace sparrow {

// The communicators of every rank of a grid, by rank; which rank `grid` itself is does not matter. An abort
// of one of them ends all.
std::vector<RankComms> thread_comms(const Grid& grid);

// The two ends of every link of a world, by rank.
std::vector<std::unique_ptr<ControlLink>> thread_links(int world);

}  // namespace sparrow
