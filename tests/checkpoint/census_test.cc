// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/census.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "support/m3_config.h"

namespace sparrow {
namespace {

struct Totals {
  size_t names = 0;
  int64_t elements = 0, bytes = 0;
};

Totals totals_of(const std::string& config_json) {
  const auto config = parse_config(config_json, "");
  EXPECT_TRUE(config.ok());
  Totals totals;
  std::set<std::string> names;
  for (const TensorSpec& spec : expected_tensors(config.value())) {
    names.insert(spec.name);
    totals.elements += spec.numel();
    totals.bytes += static_cast<int64_t>(spec.bytes());
  }
  totals.names = names.size();
  return totals;
}

// The published sizes are given in GiB with two decimals.
double gib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

TEST(Census, TheReleasedCheckpointHasItsPublishedTensorsAndParameters) {
  const Totals totals = totals_of(test::m3_config_json());
  EXPECT_EQ(totals.names, 23416u);
  EXPECT_EQ(totals.elements, 427'040'140'160);
  EXPECT_NEAR(gib(totals.bytes), 795.51, 0.005);
}

TEST(Census, TheQuantisedCheckpointHasItsPublishedTensorsAndElements) {
  const Totals totals = totals_of(test::m3_mxfp8_config_json());
  EXPECT_EQ(totals.names, 45838u);
  EXPECT_EQ(totals.elements, 440'279'845'760);
  EXPECT_NEAR(gib(totals.bytes), 413.27, 0.005);
}

TEST(Census, NamesFollowTheScheme) {
  const auto config = parse_config(test::m3_config_json(), "");
  std::set<std::string> names;
  for (const TensorSpec& spec :
       expected_tensors(config.value(), {.text_prefix = "", .dense_mlp = "block_sparse_moe"}))
    names.insert(spec.name);
  EXPECT_TRUE(names.contains("model.layers.0.block_sparse_moe.gate_proj.weight"));
  EXPECT_TRUE(names.contains("lm_head.weight"));
  EXPECT_FALSE(names.contains("language_model.lm_head.weight"));
  EXPECT_EQ(scale_name("a.weight"), "a.weight_scale_inv");
}

}  // namespace
}  // namespace sparrow
