// SPDX-License-Identifier: Apache-2.0
// Two hosts, as two network namespaces with a cable between them: ranks meet over a real network, and notice
// when somebody cuts it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "base/strf.h"
#include "comm/world.h"
#include "support/comm/rank_processes.h"

namespace sparrow {
namespace {

bool shell(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

// Namespaces that are gone with the test.
class Hosts {
 public:
  Hosts() {
    const std::string a = name(0), b = name(1);
    ready_ = shell("ip netns add " + a) && shell("ip netns add " + b) &&
             shell(strf("ip link add sp{0}a netns {1} type veth peer name sp{0}b netns {2}",
                        getpid() % 100000, a, b));
    for (int host = 0; host < 2 && ready_; ++host)
      ready_ = on(host, strf("ip addr add 10.231.77.{}/24 dev {}", host + 1, cable(host))) &&
               on(host, "ip link set lo up") && on(host, strf("ip link set {} up", cable(host)));
  }
  ~Hosts() {
    for (int host = 0; host < 2; ++host) shell("ip netns del " + name(host));
  }

  bool ready() const { return ready_; }
  void cut() { on(1, strf("ip link set {} down", cable(1))); }
  // Moves this process there.
  static bool enter(const std::string& name) {
    const int fd = open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
    const bool moved = fd >= 0 && setns(fd, CLONE_NEWNET) == 0;
    if (fd >= 0) close(fd);
    return moved;
  }
  std::string name(int host) const { return strf("sparrow-{}-{}", pid_, host); }

 private:
  bool on(int host, const std::string& command) const {
    return shell(strf("ip netns exec {} {}", name(host), command));
  }
  std::string cable(int host) const { return strf("sp{}{}", pid_ % 100000, host == 0 ? 'a' : 'b'); }

  const int pid_ = getpid();
  bool ready_ = false;
};

std::string work(World& world, bool until_failure, SharedCounter& at_work) {
  std::vector<float> x(40'000);
  ControlLink& link = world.link();
  for (int step = 0; until_failure || step < 20; ++step) {
    if (step == 5) ++*at_work;
    x.assign(x.size(), 1.0f);
    const bool sent = link.rank() == 0 ? link.send(Bytes(50'000)).ok() : link.receive().ok();
    world.comms().world->all_reduce(Tensor(x.data(), DType::kF32, {200, 200}));
    if (until_failure && link.failure()) return "";
    if (!sent || world.comms().world->failed()) return "the link failed";
    if (x[7] != 4.0f) return strf("a sum of {}", x[7]);
    if (until_failure) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return "";
}

void run_hosts(bool cut) {
  Hosts hosts;
  if (!hosts.ready()) GTEST_SKIP() << "no network namespaces here (needs root and ip)";
  const Grid grid{.tp = 2, .dp = 2};
  SharedCounter at_work;
  RankProcesses ranks(4, [&](int rank) -> std::string {
    if (!Hosts::enter(hosts.name(rank / 2))) return "cannot enter the namespace";
    WorldOptions options = test_world(grid, rank, 2);
    options.place.rendezvous = "10.231.77.1:29500";
    if (cut) options.ping_timeout = std::chrono::seconds(4);
    auto world = World::join(options);
    if (!world.ok()) return world.error().message;
    return work(**world, cut, at_work);
  });
  if (cut) {
    at_work.wait_for(4);
    hosts.cut();
  }
  EXPECT_EQ(ranks.complaints(), "");
}

TEST(WorldHosts, TwoHostsAreOneInstance) {
  run_hosts(false);
}

TEST(WorldHosts, ACutCableEndsItOnBothSides) {
  run_hosts(true);
}

}  // namespace
}  // namespace sparrow
