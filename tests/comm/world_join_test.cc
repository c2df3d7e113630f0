// SPDX-License-Identifier: Apache-2.0
// Ranks that do not belong together: each says why in one line, and so does rank 0.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "base/strf.h"
#include "comm/net/auth.h"
#include "comm/net/socket.h"
#include "comm/world.h"
#include "support/comm/rank_processes.h"

namespace sparrow {
namespace {

using testing::HasSubstr;
using Change = std::function<void(WorldOptions&)>;

std::string join_line(const WorldOptions& options) {
  const auto world = World::join(options);
  return world.ok() ? "joined" : world.error().message;
}

// Four ranks, one of which differs; what ranks 0 and `odd` say, with the host's name taken out. The others
// say what rank 0 says.
struct Lines {
  std::string host, odd;
};
Lines lines_with(int odd, const Change& change, int local_world = 4) {
  const Grid grid{.tp = 4};
  const int port = free_port();
  RankProcesses ranks(4, [&](int rank) {
    WorldOptions options = test_world(grid, rank, local_world, port);
    options.join_timeout = std::chrono::seconds(30);  // for those who come when all is over
    if (rank == odd) change(options);
    return join_line(options);
  });
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  const auto plain = [&](std::string line) {
    for (size_t at; (at = line.find(strf(" at {}", name))) != std::string::npos;)
      line.erase(at, strf(" at {}", name).size());
    for (size_t at; (at = line.find(name)) != std::string::npos;) line.replace(at, std::strlen(name), "HOST");
    return line;
  };
  std::vector<std::string> lines;
  for (int r = 0; r < 4; ++r) lines.push_back(plain(ranks.wait(r)));
  return {lines[0], lines[static_cast<size_t>(odd)]};
}

void expect_both(const Lines& lines, const std::string& line) {
  EXPECT_EQ(lines.host, line);
  EXPECT_EQ(lines.odd, line);
}

TEST(WorldJoin, DifferencesAreNamedOnBothSides) {
  expect_both(lines_with(2, [](WorldOptions& o) { o.build = "build 2"; }),
              "rank 2 has build build 2; rank 0 has build 1");
  expect_both(
      lines_with(1, [](WorldOptions& o) { o.config_digest = "digest 2"; }),
      "rank 1 has the configuration digest 2; rank 0 has digest 1: all need the same model and flags");
  expect_both(lines_with(3, [](WorldOptions& o) { o.grid.expert_parallel = true; }),
              "rank 3 has the grid TP4, expert-parallel; rank 0 has TP4");
  expect_both(lines_with(3, [](WorldOptions& o) { o.grid = {.tp = 2, .dp = 2, .rank = 3}; }),
              "rank 3 has the grid TP2 x DP2; rank 0 has TP4");
}

TEST(WorldJoin, DifferencesBetweenNodesAreNamedOnBothSides) {
  const auto other_build = [](WorldOptions& o) { o.build = "build 2"; };
  expect_both(lines_with(2, other_build, 2), "rank 2 has build build 2; rank 0 has build 1");
  expect_both(lines_with(3, other_build, 2), "rank 3 has build build 2; rank 0 has build 1");
}

TEST(WorldJoin, ARankComesOnce) {
  const Lines lines =
      lines_with(2, [](WorldOptions& o) { o.grid.rank = o.place.rank = o.place.local_rank = 1; });
  EXPECT_EQ(lines.host, "rank 1 came twice: from HOST and from HOST");
}

TEST(WorldJoin, ARankBeyondTheGridIsRefused) {
  // Eight ranks by its own count, four by rank 0's.
  const Lines lines = lines_with(3, [](WorldOptions& o) {
    o.grid = {.tp = 8, .rank = 7};
    o.place.world = o.place.local_world = 8;
    o.place.rank = o.place.local_rank = 7;
  });
  expect_both(lines, "rank 7 has the grid TP8; rank 0 has TP4");
}

TEST(WorldJoin, AGpuIsSharedOnlyWhereThatIsAllowed) {
  const Grid grid{.tp = 2};
  for (const bool share : {false, true}) {
    RankProcesses ranks(2, [&](int rank) {
      WorldOptions options = test_world(grid, rank);
      options.gpu_uuid = "GPU-1";
      options.share_gpu = share;
      return join_line(options);
    });
    for (int r = 0; r < 2; ++r) {
      const std::string line = ranks.wait(r);
      if (share)
        EXPECT_EQ(line, "joined");
      else
        EXPECT_THAT(line, HasSubstr("have the same GPU, GPU-1; --share-gpu allows that"));
    }
  }
}

TEST(WorldJoin, MissingRanksAreListed) {
  const Grid grid{.tp = 8};
  RankProcesses ranks(8, [&](int rank) {
    WorldOptions options = test_world(grid, rank);
    options.join_timeout = std::chrono::seconds(rank == 0 ? 4 : 100);
    return rank == 3 || rank == 5 ? "" : join_line(options);
  });
  // Others may be late as well on a busy machine.
  EXPECT_THAT(ranks.wait(0), testing::MatchesRegex("ranks .*3, .*5.* of 8 did not come within 4 s"));
}

// Whoever waited for it as well stays until rank 0 has said so, although its own time is over.
TEST(WorldJoin, AMissingRankIsNamedByAll) {
  const Grid grid{.tp = 3};
  RankProcesses ranks(3, [&](int rank) {
    WorldOptions options = test_world(grid, rank);
    options.join_timeout = std::chrono::seconds(rank == 0 ? 5 : 4);
    return rank == 2 ? "" : join_line(options);
  });
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_THAT(ranks.wait(rank), testing::MatchesRegex("ranks? .*2 of 3 did not come within 5 s")) << rank;
}

TEST(WorldJoin, ARankThatDiesBeforeAllAreThereIsNamed) {
  const Grid grid{.tp = 3};
  RankProcesses ranks(3, [&](int rank) -> std::string {
    if (rank == 2) return "";
    if (rank == 1) alarm(4);  // it waits for rank 2 then
    return join_line(test_world(grid, rank));
  });
  EXPECT_THAT(ranks.wait(0), HasSubstr("left before all were there"));
  EXPECT_EQ(ranks.wait(1), "killed by signal 14");
}

TEST(WorldJoin, WithoutTheTokenNobodyGetsIn) {
  const Grid grid{.tp = 2};
  RankProcesses ranks(2, [&](int rank) {
    WorldOptions options = test_world(grid, rank);
    if (rank == 0) options.join_timeout = std::chrono::seconds(6);
    if (rank == 1) options.token = "another token";
    return join_line(options);
  });
  EXPECT_THAT(ranks.wait(0), testing::MatchesRegex("rank 1 of 2 did not come within 6 s; turned away: "
                                                   "process [0-9]+ has another token"));
  EXPECT_THAT(ranks.wait(1), testing::MatchesRegex("rank 1 at .* cannot join rank 0 on this node: process "
                                                   "[0-9]+ has another token"));
}

TEST(WorldJoin, SeveralNodesNeedAToken) {
  // Also where they are one machine: whoever runs there could be a rank.
  for (const char* at : {"192.0.2.1:29500", "127.0.0.1:29500", "localhost:29500"}) {
    WorldOptions options = test_world({.tp = 2}, 0, 1, 29500);
    options.token = "";
    options.place.rendezvous = at;
    EXPECT_EQ(join_line(options),
              "ranks on 2 nodes need a token: --token-file or SPARROW_TOKEN, the same on all (openssl rand "
              "-hex 32)");
  }
}

TEST(WorldJoin, PlacesThatMakeNoSenseAreRefused) {
  WorldOptions options = test_world({.tp = 4}, 1);
  options.place.local_world = 3;
  EXPECT_EQ(join_line(options), "4 ranks do not divide into nodes of 3");
  options.place.local_world = 2;
  EXPECT_EQ(join_line(options), "several nodes need --rendezvous HOST:PORT");
  options.place.rank = 2;
  EXPECT_EQ(join_line(options), "rank 2 is number 1 on its node of 2: ranks of a node must be neighbours");
}

TEST(WorldJoin, StrangersAtThePortDisturbNobody) {
  const Grid grid{.tp = 2};
  const int port = free_port();
  RankProcesses ranks(3, [&](int rank) -> std::string {
    const auto hurry = at_deadline(std::chrono::steady_clock::now() + std::chrono::seconds(100));
    if (rank == 2) {
      // Silent, talking of something else, and knowing how to begin.
      const auto silent = connect_tcp("127.0.0.1", port, hurry);
      const auto http = connect_tcp("127.0.0.1", port, hurry);
      const std::string text = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
      for (int i = 0; i < 100 && http.ok(); ++i)
        if (!send_all(*http.operator->(), std::as_bytes(std::span(text)), hurry).ok()) break;
      const auto wrong = connect_tcp("127.0.0.1", port, hurry);
      if (wrong.ok() && authenticate(*wrong.operator->(), "a guess", hurry).ok()) return "got in";
      usleep(500'000);
      return "";
    }
    if (rank == 1) usleep(300'000);
    return join_line(test_world(grid, rank, 1, port));
  });
  EXPECT_EQ(ranks.wait(0), "joined");
  EXPECT_EQ(ranks.wait(1), "joined");
  EXPECT_EQ(ranks.wait(2), "");
}

}  // namespace
}  // namespace sparrow
