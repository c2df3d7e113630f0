// SPDX-License-Identifier: Apache-2.0
// Which modules a list leaves out, and what that makes of the table.
#include "checkpoint/mx/exclusions.h"

#include <gtest/gtest.h>

#include <map>

#include "checkpoint/tensor_table.h"
#include "support/m3_config.h"

namespace sparrow {
namespace {

bool excludes(const std::string& name, std::string_view module) {
  return Exclusions(std::vector{name}, "language_model.").contains(module);
}

TEST(Exclusions, ANameIsItsModuleAndAllBelowIt) {
  EXPECT_TRUE(excludes("vision_tower", "vision_tower.encoder.layers.0.q_proj"));
  EXPECT_TRUE(excludes("a.b", "a.b"));
  EXPECT_FALSE(excludes("a.b", "a"));
  EXPECT_FALSE(excludes("a.gate", "a.gate_proj"));
  EXPECT_FALSE(excludes("b", "a.b"));
}

TEST(Exclusions, ThePrefixOfTheTextModelDoesNotCount) {
  EXPECT_TRUE(excludes("lm_head", "language_model.lm_head"));
  EXPECT_TRUE(excludes("language_model.lm_head", "lm_head"));
  EXPECT_TRUE(excludes("model.layers.*.q", "language_model.model.layers.7.q"));
  EXPECT_TRUE(excludes("language_model.model.layers.*.q", "model.layers.7.q"));
  EXPECT_TRUE(excludes("language_model.model.layers.*.q", "language_model.model.layers.7.q"));
}

TEST(Exclusions, APatternMatchesFromEndToEnd) {
  EXPECT_TRUE(excludes("*self_attn*", "language_model.model.layers.3.self_attn.q_proj"));
  EXPECT_TRUE(excludes("*mlp.gate_proj", "model.layers.0.mlp.gate_proj"));
  EXPECT_FALSE(excludes("*mlp.gate_proj", "model.layers.0.shared_experts.gate_proj"));
  EXPECT_FALSE(excludes("*self_attn", "model.layers.3.self_attn.q_proj"));
  EXPECT_TRUE(excludes("*", "anything"));
  EXPECT_TRUE(excludes("a*a*b", "aaab"));
  EXPECT_FALSE(excludes("a*a*b", "ab"));
  EXPECT_FALSE(excludes("*a*a*a*a*a*a*a*a*b", std::string(4000, 'a')));  // in no time
}

ModelConfig m3(QuantFormat format, std::vector<std::string> unquantised) {
  ModelConfig config = parse_config(test::m3_config_json(), "").value();
  config.quant = format;
  config.unquantised = std::move(unquantised);
  return config;
}

// Matrices of each part of the ledger that have the format.
std::map<LedgerPart, int> quantised(const ModelConfig& config, MatrixFormat format) {
  std::map<LedgerPart, int> counts;
  for (const TensorRow& row : tensor_table(config))
    if (row.piece == TensorPiece::kValues && row.format == format) ++counts[row.part];
  return counts;
}

TEST(Exclusions, WhatQuarkLeavesOutMakesExpertsMxfp4AndNothingElse) {
  const ModelConfig config = m3(QuantFormat::kMxfp4, unquantised_modules(QuantFormat::kMxfp4, 3, 60));
  const std::map<LedgerPart, int> expected = {{LedgerPart::kRoutedExperts, 57 * 128 * 3},
                                              {LedgerPart::kSharedExperts, 57 * 3}};
  EXPECT_EQ(quantised(config, MatrixFormat::kMxfp4), expected);
  const std::vector<TensorRow> rows = tensor_table(config);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].piece != TensorPiece::kScales) continue;
    const TensorSpec &values = rows[i - 1].spec, &scales = rows[i].spec;
    ASSERT_EQ(scales.name, values.name + "_scale");
    ASSERT_EQ(values.dtype, DType::kU8);
    ASSERT_EQ(values.shape[1] * 2, rows[i - 1].columns());
    ASSERT_EQ(scales.shape[1] * 32, rows[i - 1].columns());
  }
}

TEST(Exclusions, FormatsGoByMatrix) {
  const auto counts =
      quantised(m3(QuantFormat::kMxfp8, {"*self_attn*", "model.layers.0.mlp"}), MatrixFormat::kMxfp8);
  EXPECT_FALSE(counts.contains(LedgerPart::kAttention));
  EXPECT_EQ(counts.at(LedgerPart::kDense), 2 * 3);
  EXPECT_EQ(counts.at(LedgerPart::kSharedExperts), 57 * 3);
  // Nothing left out but what has no quantised form.
  EXPECT_EQ(quantised(m3(QuantFormat::kMxfp4, {}), MatrixFormat::kMxfp4),
            quantised(m3(QuantFormat::kMxfp8, {}), MatrixFormat::kMxfp8));
}

}  // namespace
}  // namespace sparrow
