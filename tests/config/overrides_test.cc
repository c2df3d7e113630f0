// SPDX-License-Identifier: Apache-2.0
// Overrides of config.json: what they reach, in both layouts, and what they are told when they reach nothing.
#include "config/overrides.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/json/json.h"
#include "config/config.h"
#include "support/m3_config.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

using testing::HasSubstr;

// The same model as transformers writes it: one level, other names.
constexpr std::string_view kFlat = R"({
  "model_type": "minimax_m3_vl_text", "vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 3,
  "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 64,
  "dense_intermediate_size": 384, "shared_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2,
  "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
  "mlp_layer_types": ["dense", "sparse", "sparse"],
  "index_n_heads": 2, "index_head_dim": 128, "index_block_size": 128, "index_topk_blocks": 4,
  "rope_parameters": {"rope_type": "default", "rope_theta": 5000000, "partial_rotary_factor": 0.5},
  "max_position_embeddings": 4096, "torch_dtype": "bfloat16"
})";

Result<ModelConfig> read(std::string_view config, std::string_view overrides) {
  const auto merged = override_config(config, overrides);
  if (!merged.ok()) return merged.error();
  return parse_config(merged.value(), "");
}

ModelConfig nested_with(std::string_view overrides) {
  auto config = read(test::m3_config_json(), overrides);
  EXPECT_TRUE(config.ok()) << overrides << ": " << config.error().message;
  return std::move(config).value();
}
ModelConfig flat_with(std::string_view overrides) {
  auto config = read(kFlat, overrides);
  EXPECT_TRUE(config.ok()) << overrides << ": " << config.error().message;
  return std::move(config).value();
}

std::string refusal(std::string_view config, std::string_view overrides) {
  const auto read_config = read(config, overrides);
  EXPECT_FALSE(read_config.ok()) << overrides;
  const std::string message = read_config.ok() ? "" : read_config.error().message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

TEST(Overrides, QuantisationIsReachedInBothSpellings) {
  const ModelConfig mxfp8 =
      nested_with(R"({"quantization_config": {"quant_method": "mxfp8", "ignored_layers": ["*self_attn*"]}})");
  EXPECT_EQ(mxfp8.quant, QuantFormat::kMxfp8);
  EXPECT_EQ(mxfp8.unquantised, std::vector<std::string>{"*self_attn*"});
  constexpr std::string_view kQuark =
      R"({"quantization_config": {"quant_method": "quark", "exclude": ["lm_head"],
    "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32,
                                       "scale_format": "e8m0"}},
    "export": {"weight_format": "real_quantized"}}})";
  EXPECT_EQ(nested_with(kQuark).quant, QuantFormat::kMxfp4);
  EXPECT_THAT(refusal(test::m3_config_json(),
                      R"({"quantization_config": {"global_quant_config": {"weight": {"type": "fp4"}}}})"),
              HasSubstr("quantization_config.global_quant_config.weight.type"));
}

TEST(Overrides, NothingChangesNothing) {
  EXPECT_EQ(nested_with("{}").max_positions, 1048576);
  EXPECT_EQ(nested_with(R"({"text_config": {}})").num_layers, 60);
  EXPECT_EQ(nested_with(R"({"text_config": null})").num_layers, 60);
  EXPECT_EQ(flat_with("{}").num_layers, 3);
}

TEST(Overrides, YarnReachesTheTextModelInEverySpelling) {
  for (const char* outer : {"rope_scaling", "rope_parameters"})
    for (const char* type : {"rope_type", "type"}) {
      const std::string overrides = strf(
          R"({{"text_config": {{"{}": {{"{}": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}},
          "max_position_embeddings": 8192}}}})",
          outer, type);
      for (const ModelConfig& config : {nested_with(overrides), flat_with(overrides)}) {
        EXPECT_TRUE(config.rope.yarn) << overrides;
        EXPECT_EQ(config.rope.factor, 4.0);
        EXPECT_EQ(config.rope.original_max_positions, 1024);
        EXPECT_EQ(config.rope.theta, 5e6);
        EXPECT_EQ(config.rope.rotary_dim, 64);
        EXPECT_EQ(config.max_positions, 8192);
        // Which layers are sparse does not depend on how the override is spelled.
        EXPECT_EQ(config.layer_is_sparse.back(), 1);
        EXPECT_EQ(config.layer_is_moe.front(), 0);
      }
    }
}

TEST(Overrides, ASpellingInTheFileIsTakenOver) {
  const std::string with_yarn = test::replaced(
      test::m3_config_json(), "\"rope_theta\": 5000000",
      R"("rope_theta": 5000000, "rope_scaling": {"type": "yarn", "factor": 2.0, "beta_fast": 16})");
  const auto changed = read(with_yarn, R"({"text_config": {"rope_parameters": {"factor": 8}}})");
  ASSERT_TRUE(changed.ok()) << changed.error().message;
  EXPECT_TRUE(changed->rope.yarn);
  EXPECT_EQ(changed->rope.factor, 8.0);
  EXPECT_EQ(changed->rope.beta_fast, 16.0);
  const auto off = read(with_yarn, R"({"text_config": {"rope_scaling": {"rope_type": "default"}}})");
  ASSERT_TRUE(off.ok());
  EXPECT_FALSE(off->rope.yarn);
  const auto removed = read(with_yarn, R"({"text_config": {"rope_scaling": null}})");
  ASSERT_TRUE(removed.ok());
  EXPECT_FALSE(removed->rope.yarn);
}

TEST(Overrides, ThetaAndTheTurnedPartReachTheObjectThatHoldsThem) {
  for (const char* overrides : {R"({"text_config": {"rope_theta": 10000}})",
                                R"({"text_config": {"rope_parameters": {"rope_theta": 10000}}})"}) {
    EXPECT_EQ(flat_with(overrides).rope.theta, 10000.0) << overrides;
    EXPECT_EQ(nested_with(overrides).rope.theta, 10000.0) << overrides;
  }
  EXPECT_EQ(flat_with(R"({"text_config": {"partial_rotary_factor": 0.25}})").rope.rotary_dim, 32);
}

TEST(Overrides, AliasesReachTheFieldThatTheFileUses) {
  EXPECT_EQ(nested_with(R"({"text_config": {"num_experts": 64}})").num_experts, 64);
  EXPECT_EQ(flat_with(R"({"text_config": {"num_local_experts": 16}})").num_experts, 16);
  EXPECT_EQ(nested_with(R"({"text_config": {"index_topk_blocks": 8}})").top_k_blocks, 8);
  EXPECT_EQ(flat_with(R"({"text_config": {"index_topk_blocks": 2}})").top_k_blocks, 2);
  EXPECT_EQ(
      flat_with(R"({"text_config": {"sparse_attention_config": {"sparse_topk_blocks": 3}}})").top_k_blocks,
      3);
  EXPECT_EQ(nested_with(R"({"dtype": "float32"})").dtype, DType::kF32);
  const std::string both = test::replaced(test::m3_config_json(), "\"torch_dtype\": \"bfloat16\"",
                                          R"("torch_dtype": "bfloat16", "dtype": "bfloat16")");
  for (const char* overrides : {R"({"dtype": "float32"})", R"({"torch_dtype": "float32"})"})
    EXPECT_EQ(read(both, overrides).value().dtype, DType::kF32) << overrides;
  EXPECT_EQ(flat_with(R"({"text_config": {"moe_layer_freq": [1, 1, 1]}})").layer_is_moe[0], 1);
  EXPECT_EQ(flat_with(R"({"text_config": {"sparse_attention_config": {"sparse_attention_freq": [1, 0, 1]}}})")
                .layer_is_sparse,
            (std::vector<uint8_t>{1, 0, 1}));
}

TEST(Overrides, AFlatFileTakesItsFieldsAtTheTopLevelToo) {
  EXPECT_EQ(flat_with(R"({"max_position_embeddings": 99})").max_positions, 99);
  EXPECT_THAT(refusal(kFlat, R"({"hidden_size": 32, "text_config": {"hidden_size": 64}})"),
              HasSubstr("hidden_size is given twice"));
}

TEST(Overrides, FewerLayersNeedNoNewLists) {
  const ModelConfig config = nested_with(R"({"text_config": {"num_hidden_layers": 4}})");
  EXPECT_EQ(config.layer_is_sparse, (std::vector<uint8_t>{0, 0, 0, 1}));
}

TEST(Overrides, ATextFieldAtTheTopLevelIsToldWhereItBelongs) {
  EXPECT_THAT(
      refusal(test::m3_config_json(), R"({"max_position_embeddings": 2097152})"),
      HasSubstr(
          R"(--hf-overrides: max_position_embeddings is 2097152 at the top level, but it belongs to the text model: {"text_config": {"max_position_embeddings": ...}})"));
  EXPECT_THAT(refusal(test::m3_config_json(), R"({"rope_scaling": {"factor": 2}})"),
              HasSubstr("rope_scaling is {\"factor\": 2} at the top level"));
}

TEST(Overrides, WhatNothingReadsIsRefusedByName) {
  const std::string m3 = test::m3_config_json();
  EXPECT_THAT(refusal(m3, R"({"text_config": {"max_positions": 3}})"),
              HasSubstr("text_config.max_positions is 3, and"));
  EXPECT_THAT(refusal(m3, R"({"colour": "red"})"), HasSubstr("colour is \"red\", and"));
  EXPECT_THAT(refusal(m3, R"({"text_config": {"rope_scaling": {"fctor": 2}}})"),
              HasSubstr("text_config.rope_scaling.fctor is 2, and"));
  EXPECT_THAT(refusal(m3, R"({"text_config": {"sparse_attention_config": {"topk": 2}}})"),
              HasSubstr("text_config.sparse_attention_config.topk is 2, and"));
  EXPECT_THAT(refusal(m3, R"({"vision_config": {"depth": 2}})"), HasSubstr("vision_config.depth is 2, and"));
  EXPECT_THAT(refusal(m3, R"({"text_config": {"rope_scaling": {}, "rope_parameters": {}}})"),
              HasSubstr("two spellings of one field"));
  EXPECT_THAT(refusal(kFlat, R"({"vision_config": {"hidden_size": 32}})"), HasSubstr("has no vision"));
}

TEST(Overrides, WrongTypesAndValuesNameFieldAndValue) {
  const std::string m3 = test::m3_config_json();
  EXPECT_THAT(refusal(m3, R"({"text_config": {"hidden_size": "wide"}})"),
              HasSubstr("text_config.hidden_size must be an integer from 1 to 65536, got \"wide\""));
  EXPECT_THAT(refusal(m3, R"({"text_config": 7})"), HasSubstr("text_config must be an object, got 7"));
  EXPECT_THAT(refusal(m3, R"({"text_config": {"rope_scaling": "yarn"}})"),
              HasSubstr("text_config.rope_scaling must be an object, got \"yarn\""));
  EXPECT_THAT(refusal(m3, R"({"text_config": {"rope_scaling": {"rope_type": "linear", "factor": 2}}})"),
              HasSubstr("rope_type is \"linear\""));
  EXPECT_THAT(refusal(m3, R"({"text_config": {"rope_scaling": {"rope_type": "yarn"}}})"),
              HasSubstr("rope_scaling.factor is missing"));
  EXPECT_THAT(refusal(m3, R"({"text_config": {"rope_theta": 1e999}})"), HasSubstr("rope_theta"));
  EXPECT_THAT(refusal(m3, R"({"text_config": {"vocab_size": 99999999999999999999}})"),
              HasSubstr("vocab_size"));
}

TEST(Overrides, WhatIsNoJsonObjectIsRefused) {
  const std::string m3 = test::m3_config_json();
  for (const char* text : {"{", "", "[]", "7", "null", "{\"a\": 1} x", R"({"dtype": 1, "dtype": 2})"})
    EXPECT_THAT(refusal(m3, text), HasSubstr("--hf-overrides")) << text;
}

TEST(Overrides, DoNotHideWhatIsWrongWithTheFile) {
  EXPECT_THAT(refusal(R"({"model_type": "minimax_m3_vl", "text_config": 5})", "{}"),
              HasSubstr("text_config must be an object"));
  EXPECT_FALSE(override_config("[]", "{}").ok());
  EXPECT_FALSE(override_config("{", "{}").ok());
}

TEST(Overrides, TheRestOfTheFileStaysAsItWas) {
  const auto merged = override_config(
      R"({"a": [1, 2.5, "\u00e9\n", null, true], "big": 123456789012345678901234567890, "text_config": {"x": 1e-6}})",
      R"({"text_config": {"hidden_size": 64}})");
  ASSERT_TRUE(merged.ok()) << merged.error().message;
  EXPECT_EQ(
      merged.value(),
      "{\"a\":[1,2.5,\"é\\n\",null,true],\"big\":123456789012345678901234567890,\"text_config\":{\"x\":1e-06,"
      "\"hidden_size\":64}}");
}

TEST(LoadConfig, TakesAFolderOrAFileAndSaysThatItWasOverridden) {
  const test::TempDir dir;
  std::ofstream(dir.path() / "config.json") << test::m3_config_json();
  EXPECT_EQ(load_config(dir.path()).value().num_layers, 60);
  EXPECT_EQ(load_config(dir.path() / "config.json").value().num_layers, 60);
  EXPECT_EQ(load_config(dir.path(), R"({"text_config": {"num_hidden_layers": 5}})").value().num_layers, 5);
  const auto bad = load_config(dir.path(), R"({"text_config": {"num_hidden_layers": 0}})");
  ASSERT_FALSE(bad.ok());
  EXPECT_THAT(bad.error().message, HasSubstr("with --hf-overrides: text_config.num_hidden_layers must be"));
  EXPECT_FALSE(load_config(dir.path() / "nothing").ok());
}

}  // namespace
}  // namespace sparrow
