// SPDX-License-Identifier: Apache-2.0
// CpuLimits: how many processors this process may use at a time. A larger team of threads is paused again
// and again, and slower than a smaller one.
#pragma once

#include <filesystem>
#include <vector>

namespace sparrow {

struct CpuLimits {
  int affinity = 1;  // processors the process may run on
  double quota =
      0;  // of a control group (version 1 or 2), its own or one above: processors at a time; 0: none

  int threads() const;
};

// `root`: where /proc and /sys are looked for. What cannot be read counts as no limit.
CpuLimits cpu_limits(const std::filesystem::path& root = "/");

// The folders that hold this process's limits, its own first, then those above it: of version 2, or of that
// controller of version 1 ("cpu").
std::vector<std::filesystem::path> control_groups(const std::filesystem::path& root,
                                                  const char* controller = "");

}  // namespace sparrow
