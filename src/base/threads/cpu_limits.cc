// SPDX-License-Identifier: Apache-2.0
#include "base/threads/cpu_limits.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace sparrow {
namespace {

// Whether a line of /proc/self/cgroup, "7:cpu,cpuacct:/path", names the controller; version 2 has the line
// "0::/path".
bool names(const std::string& controllers, const std::string& wanted) {
  std::istringstream list(controllers);
  for (std::string name; std::getline(list, name, ',');)
    if (name == wanted) return true;
  return controllers.empty() && wanted.empty();
}

// "200000 100000", or "max 100000".
std::optional<double> quota_v2(const std::filesystem::path& folder) {
  std::ifstream file(folder / "cpu.max");
  double allowed = 0, period = 0;
  if (!(file >> allowed >> period) || allowed <= 0 || period <= 0) return std::nullopt;
  return allowed / period;
}

// -1: none.
std::optional<double> quota_v1(const std::filesystem::path& folder) {
  std::ifstream quota(folder / "cpu.cfs_quota_us"), length(folder / "cpu.cfs_period_us");
  double allowed = 0, period = 0;
  if (!(quota >> allowed) || !(length >> period) || allowed <= 0 || period <= 0) return std::nullopt;
  return allowed / period;
}

}  // namespace

int CpuLimits::threads() const {
  if (quota <= 0) return std::max(1, affinity);
  return std::max(1, static_cast<int>(std::min<double>(quota, affinity)));
}

std::vector<std::filesystem::path> control_groups(const std::filesystem::path& root, const char* controller) {
  const std::filesystem::path top = root / "sys/fs/cgroup" / controller;
  std::vector<std::filesystem::path> folders;
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(":/", first + 1);
    if (first == line.npos || second == line.npos) continue;
    if (!names(line.substr(first + 1, second - first - 1), controller)) continue;
    for (std::filesystem::path at = line.substr(second + 2); !at.empty(); at = at.parent_path())
      folders.push_back(top / at);
  }
  folders.push_back(top);  // in a container the path may be one of the host's
  return folders;
}

CpuLimits cpu_limits(const std::filesystem::path& root) {
  CpuLimits limits;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) limits.affinity = std::max(1, CPU_COUNT(&set));
  const auto consider = [&](std::optional<double> quota) {
    if (quota) limits.quota = limits.quota > 0 ? std::min(limits.quota, *quota) : *quota;
  };
  for (const auto& folder : control_groups(root)) consider(quota_v2(folder));
  for (const auto& folder : control_groups(root, "cpu")) consider(quota_v1(folder));
  return limits;
}

}  // namespace sparrow
