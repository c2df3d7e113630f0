// SPDX-License-Identifier: Apache-2.0
// A server under load, in brief: every scenario of bench/serve with the checks that hold on any machine. The
// whole of it is for `serve_load`, by hand.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "scenarios.h"
#include "support/program.h"
#include "support/temp_dir.h"

namespace sparrow::test {
namespace {

class ServeLoad : public testing::TestWithParam<load::Scenario> {};

TEST_P(ServeLoad, Holds) {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = files.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
  const TempDir dir;
  const auto model = dir.path() / "tiny";
  ASSERT_EQ(run_sparrow({"make-model", "--preset", "tiny", "--out", model}).exit_code, 0);
  const load::Report report = GetParam().run({.program = SPARROW_BINARY,
                                              .model = model,
                                              .tiny_model = model,
                                              .server_log = dir.path() / "log",
                                              .brief = true});
  EXPECT_TRUE(report.ok(/*with_goals=*/false)) << report.table();
}

std::string name_of(const testing::TestParamInfo<load::Scenario>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Brief, ServeLoad, testing::ValuesIn(load::kScenarios), name_of);

}  // namespace
}  // namespace sparrow::test
