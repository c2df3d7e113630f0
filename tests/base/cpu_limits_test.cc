// SPDX-License-Identifier: Apache-2.0
#include "base/threads/cpu_limits.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <fstream>
#include <string>

#include "base/threads/thread_pool.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

class FakeRoot {
 public:
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((dir_.path() / path).parent_path());
    std::ofstream(dir_.path() / path) << text;
  }
  double quota() const { return cpu_limits(dir_.path()).quota; }

 private:
  test::TempDir dir_;
};

TEST(CpuLimits, WithoutQuotasTheAffinityDecides) {
  const FakeRoot root;
  EXPECT_EQ(root.quota(), 0);
  root.write("proc/self/cgroup", "rubbish\n0::/a\n");
  root.write("sys/fs/cgroup/a/cpu.max", "max 100000\n");
  EXPECT_EQ(root.quota(), 0);
  root.write("sys/fs/cgroup/a/cpu.max", "rubbish");
  EXPECT_EQ(root.quota(), 0);
}

TEST(CpuLimits, TheSmallestQuotaOfAllGroupsAboveCounts) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/user/me\n");
  root.write("sys/fs/cgroup/user/me/cpu.max", "600000 100000\n");
  EXPECT_EQ(root.quota(), 6);
  root.write("sys/fs/cgroup/user/cpu.max", "150000 100000\n");
  EXPECT_EQ(root.quota(), 1.5);
}

TEST(CpuLimits, QuotasOfVersionOneCountToo) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "12:memory:/box\n4:cpu,cpuacct:/box\n1:name=systemd:/box\n");
  root.write("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(root.quota(), 0);
  root.write("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "250000\n");
  EXPECT_EQ(root.quota(), 2.5);
}

// A container sees its own group at the top, and the path of the host in /proc.
TEST(CpuLimits, AContainersOwnGroupCounts) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/../../host/path\n");
  root.write("sys/fs/cgroup/cpu.max", "300000 100000\n");
  EXPECT_EQ(root.quota(), 3);
}

TEST(CpuLimits, ThreadsAreWholeAndAtLeastOne) {
  EXPECT_EQ((CpuLimits{.affinity = 8}.threads()), 8);
  EXPECT_EQ((CpuLimits{.affinity = 8, .quota = 2.5}.threads()), 2);
  EXPECT_EQ((CpuLimits{.affinity = 8, .quota = 0.5}.threads()), 1);
  EXPECT_EQ((CpuLimits{.affinity = 2, .quota = 64}.threads()), 2);
}

TEST(CpuLimits, TheDefaultTeamFollowsTheAffinity) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(ThreadPool::default_size(), 1);
  sched_setaffinity(0, sizeof before, &before);
}

}  // namespace
}  // namespace sparrow
