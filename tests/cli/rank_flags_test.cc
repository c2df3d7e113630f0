// SPDX-License-Identifier: Apache-2.0
#include "cli/rank_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <variant>

#include "base/files/mapped_file.h"
#include "cli/commands.h"
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
                            "--share-gpu", "--join-timeout", "7"})
          .ranks;
  EXPECT_EQ(serve.grid, (Grid{.tp = 4, .dp = 2, .expert_parallel = true}));
  EXPECT_TRUE(serve.share_gpu);
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
}

}  // namespace
}  // namespace sparrow::cli
