// SPDX-License-Identifier: Apache-2.0
#include "cli/rank_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <variant>

#include "base/files/mapped_file.h"
#include "cli/commands.h"
#include "cli/load_model.h"
#include "cli/ranks/rank_process.h"
#include "cli/serve/serve_checks.h"
#include "support/temp_dir.h"

namespace sparrow::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string token(const RankFlags& flags, const char* variable) {
  const auto result = read_token(flags, [&](const char*) { return variable; });
  return result.ok() ? result.value() : result.error().message;
}

TEST(RankFlags, TheTokenComesFromItsFileOrTheEnvironment) {
  const test::TempDir dir;
  const auto path = dir.path() / "token";
  ASSERT_TRUE(write_text_file(path, "  0123456789abcdef\n").ok());
  EXPECT_EQ(token({}, nullptr), "");
  EXPECT_EQ(token({}, "fedcba9876543210\n"), "fedcba9876543210");
  EXPECT_EQ(token({.token_file = path}, "fedcba9876543210"), "0123456789abcdef");
  EXPECT_THAT(token({}, "secret"), AllOf(HasSubstr("SPARROW_TOKEN has 6 characters"), HasSubstr("openssl")));
  ASSERT_TRUE(write_text_file(path, "\n").ok());
  EXPECT_THAT(token({.token_file = path}, nullptr),
              AllOf(HasSubstr("--token-file"), HasSubstr("0 characters")));
  EXPECT_THAT(token({.token_file = dir.path() / "none"}, nullptr), HasSubstr("none"));
}

template <typename Options>
Options parsed(std::vector<const char*> args) {
  args.insert(args.begin(), "sparrow");
  auto command = parse_args(static_cast<int>(args.size()), args.data());
  return std::get<Options>(std::get<Command>(std::move(command)));
}

TEST(RankFlags, ComeFromTheCommandLine) {
  const RankFlags serve =
      parsed<ServeOptions>({"serve", "m", "--tensor-parallel-size", "4", "--dp", "2", "--expert-parallel",
                            "--nnodes", "2", "--node-rank", "1", "--rendezvous", "n:9", "--token-file", "t",
                            "--share-gpu", "--join-timeout", "7", "--no-peer-memory"})
          .ranks;
  EXPECT_EQ(serve.grid, (Grid{.tp = 4, .dp = 2, .expert_parallel = true}));
  EXPECT_TRUE(serve.share_gpu);
  EXPECT_TRUE(serve.no_peer_memory);
  EXPECT_EQ(serve.token_file, "t");
  EXPECT_EQ(serve.join_timeout_seconds, 7);
  const PlaceFlags place = serve.place();
  EXPECT_EQ(place.world, 8);
  EXPECT_EQ(place.num_nodes, 2);
  EXPECT_EQ(place.node_rank, 1);
  EXPECT_EQ(place.rendezvous, "n:9");
  EXPECT_FALSE(place.rank || place.world_size);

  const RankFlags generate =
      parsed<GenerateOptions>({"generate", "--model", "m", "--prompt", "p", "--enable-expert-parallel",
                               "--rank", "1", "--world-size", "2", "--data-parallel-size", "2"})
          .ranks;
  EXPECT_EQ(generate.grid, (Grid{.dp = 2, .expert_parallel = true}));
  EXPECT_EQ(generate.place().rank, 1);
  EXPECT_EQ(generate.place().world_size, 2);

  EXPECT_EQ(parsed<BenchStepOptions>({"bench", "step", "--tp", "4", "--dp", "2", "--rank", "5"}).grid,
            (Grid{.tp = 4, .dp = 2, .rank = 5}));
  EXPECT_FALSE(generate.no_peer_memory);
  const auto plan = parsed<PlanCommandOptions>({"plan", "m3", "--nnodes", "2", "--no-peer-memory"});
  EXPECT_EQ(plan.num_nodes, 2);
  EXPECT_TRUE(plan.no_peer_memory);
}

std::string refusal(const Status& status) {
  return status.ok() ? "" : status.error().message;
}

TEST(RankFlags, AboutMemoryOfGpusNeedSeveralOfThem) {
  EXPECT_EQ(refusal(RankFlags{.no_peer_memory = true}.check_alone()),
            "--no-peer-memory: the grid has one rank, which exchanges nothing");
  EXPECT_EQ(refusal(RankFlags{}.check_alone()), "");
  for (const char* device : {"auto", "cuda"})
    EXPECT_EQ(refusal(RankFlags{.no_peer_memory = true}.check_device(device)), "");
  EXPECT_EQ(refusal(RankFlags{.no_peer_memory = true}.check_device("cpu")),
            "--no-peer-memory: it is about GPUs, and the device is cpu");
  EXPECT_EQ(refusal(RankFlags{}.check_device("cpu")), "");
}

TEST(RankFlags, ARankAloneHasRandomWeightsAndAGpu) {
  ServeOptions o = parsed<ServeOptions>({"serve", "m", "--tp", "8", "--no-comm"});
  EXPECT_TRUE(o.no_comm);
  const auto is_refused = [](const ServeOptions& options) {
    return refusal(check_flags(options)).starts_with("--no-comm:");
  };
  o.load.device = built_with_cuda() ? "cuda" : "auto";
  EXPECT_TRUE(is_refused(o));
  o.load.load_format = "dummy";
  EXPECT_EQ(is_refused(o), !built_with_cuda());
  o.ranks.grid.dp = 2;
  EXPECT_TRUE(is_refused(o));
  o.load.device = "cpu";
  o.ranks.grid.dp = 1;
  EXPECT_TRUE(is_refused(o));
}

// Grid, nodes and flags say how ranks exchange, and whoever says otherwise does not get in.
TEST(RankFlags, SayHowRanksExchange) {
  const RankPlace in_node{.world = 8, .local_world = 8}, of_two{.world = 8, .local_world = 4};
  const auto options_of = [](bool no_peer_memory, const RankPlace& place) {
    return rank_options({}, {.grid = {.tp = 4, .dp = 2}, .no_peer_memory = no_peer_memory}, place);
  };
  const EngineOptions node = options_of(false, in_node), asked = options_of(true, in_node),
                      nodes = options_of(false, of_two);
  EXPECT_EQ(node.gpu.exchange, ExchangeWay{});
  EXPECT_EQ(asked.gpu.exchange, (ExchangeWay{.nccl = true}));
  EXPECT_EQ(nodes.gpu.exchange, (ExchangeWay{.nccl = true, .num_nodes = 2}));
  EXPECT_NE(config_digest("m", {}, node), config_digest("m", {}, asked));
  EXPECT_NE(config_digest("m", {}, nodes), config_digest("m", {}, asked));
  EXPECT_EQ(config_digest("m", {}, node), config_digest("m", {}, options_of(false, in_node)));
}

}  // namespace
}  // namespace sparrow::cli
