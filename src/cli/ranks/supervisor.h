// SPDX-License-Identifier: Apache-2.0
// Supervisor: starts the ranks of a node as processes, where no launcher did, and outlives them. It has
// neither threads nor a GPU. Signals that it gets go to rank 0, once; its ranks are a process group each, so
// that a terminal signals nobody else. Ranks end together: when one has ended the others get a moment, and
// are killed then; those that are stopped at once. They do not outlive it, however it ends.
#pragma once

#include <string>
#include <vector>

#include "comm/launch.h"

namespace sparrow::cli {

// How a process ends that lost another rank.
inline constexpr int kExitLostRank = 70;

// `args` are those of this program, its name first, and `command` the one among them that the flags of a rank
// go behind. Returns the code to exit with: that of the rank that ended first.
int supervise(const std::vector<RankPlace>& places, const std::vector<std::string>& args,
              const std::string& command);

// The arguments this program was started with.
std::vector<std::string> own_arguments();

}  // namespace sparrow::cli
