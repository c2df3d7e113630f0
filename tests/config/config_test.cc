// SPDX-License-Identifier: Apache-2.0
#include "config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/files/mapped_file.h"
#include "support/m3_config.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

using test::m3_config_json;
using test::replaced;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig parsed(const std::string& config, const std::string& generation = "") {
  auto result = parse_config(config, generation);
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? std::move(result).value() : ModelConfig{};
}

std::string error_of(const std::string& config, const std::string& generation = "") {
  const auto result = parse_config(config, generation);
  return result.ok() ? "(no error)" : result.error().message;
}

// Smallest useful configuration in the flat spelling.
std::string flat_config(const std::string& extra = "") {
  return R"({"model_type": "minimax_m3_vl", "dtype": "float32", "text_config": {
    "vocab_size": 320, "hidden_size": 128, "intermediate_size": 64, "dense_intermediate_size": 96,
    "shared_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2,
    "num_local_experts": 8, "num_experts_per_tok": 2, "index_n_heads": 2, "index_head_dim": 128,
    "index_block_size": 128, "index_topk_blocks": 4, "index_local_blocks": 1, "eos_token_id": 2)" +
         extra + "}}";
}

TEST(Config, TheReleasedConfigurationReadsAsPublished) {
  const ModelConfig config = parsed(m3_config_json());
  EXPECT_EQ(config.dtype, DType::kBF16);
  EXPECT_EQ(config.quant, QuantFormat::kNone);
  EXPECT_EQ(config.vocab_size, 200064);
  EXPECT_EQ(config.hidden_size, 6144);
  EXPECT_EQ(config.num_layers, 60);
  EXPECT_EQ(config.num_query_heads, 64);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.expert_intermediate_size, 3072);
  EXPECT_EQ(config.dense_intermediate_size, 12288);
  EXPECT_EQ(config.shared_intermediate_size, 3072);
  EXPECT_EQ(config.num_experts, 128);
  EXPECT_EQ(config.experts_per_token, 4);
  ASSERT_EQ(config.layer_is_sparse.size(), 60u);
  ASSERT_EQ(config.layer_is_moe.size(), 60u);
  for (size_t i = 0; i < 60; ++i) {
    EXPECT_EQ(config.layer_is_sparse[i], i >= 3) << i;
    EXPECT_EQ(config.layer_is_moe[i], i >= 3) << i;
  }
  EXPECT_EQ(config.rms_norm_eps, 1e-6f);
  EXPECT_EQ(config.swiglu_alpha, 1.702f);
  EXPECT_EQ(config.swiglu_limit, 7.0f);
  EXPECT_EQ(config.swiglu_beta, 1.0f);
  EXPECT_EQ(config.routed_scaling_factor, 2.0f);
  EXPECT_EQ(config.top_k_blocks, 16);
  EXPECT_EQ(config.local_blocks, 1);
  EXPECT_EQ(config.init_blocks, 0);
  EXPECT_EQ(config.max_positions, 1048576);
  EXPECT_EQ(config.rope.theta, 5e6);
  EXPECT_EQ(config.rope.rotary_dim, 64);
  EXPECT_FALSE(config.rope.yarn);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(200020));
  ASSERT_TRUE(config.vision.has_value());
  EXPECT_EQ(config.vision->hidden_size, 1280);
  EXPECT_EQ(config.vision->num_layers, 32);
  EXPECT_EQ(config.vision->num_heads, 16);
  EXPECT_EQ(config.vision->intermediate_size, 5120);
  EXPECT_EQ(config.vision->projector_hidden_size, 6144);
  EXPECT_EQ(config.vision->image_token_id, 200025);
  EXPECT_EQ(config.vision->video_token_id, 200026);
  EXPECT_EQ(parsed(test::m3_mxfp8_config_json()).quant, QuantFormat::kMxfp8);
}

TEST(Config, TheFlatSpellingReadsTheSameFields) {
  const ModelConfig config = parsed(flat_config(
      R"(, "layer_types": ["full_attention", "minimax_m3_sparse"], "mlp_layer_types": ["dense", "sparse"],
          "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
                              "factor": 4.0, "original_max_position_embeddings": 1024})"));
  EXPECT_EQ(config.dtype, DType::kF32);
  EXPECT_EQ(config.top_k_blocks, 4);
  EXPECT_EQ(config.shared_intermediate_size, 32);
  EXPECT_THAT(config.layer_is_sparse, ElementsAre(0, 1));
  EXPECT_THAT(config.layer_is_moe, ElementsAre(0, 1));
  EXPECT_TRUE(config.rope.yarn);
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_EQ(config.rope.factor, 4.0);
  EXPECT_EQ(config.rope.beta_fast, 32.0);
  EXPECT_EQ(config.rope.beta_slow, 1.0);
  EXPECT_EQ(config.rope.original_max_positions, 1024);
  EXPECT_FALSE(config.rope.attention_factor.has_value());
  EXPECT_TRUE(config.rope.truncate);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2));
  EXPECT_FALSE(config.vision.has_value());
}

TEST(Config, LayerListsThatAreAbsentTakeTheDefaultsOfTheirSpelling) {
  const ModelConfig flat = parsed(flat_config());
  EXPECT_THAT(flat.layer_is_sparse, ElementsAre(0, 0));
  EXPECT_THAT(flat.layer_is_moe, ElementsAre(1, 1));
  const ModelConfig raw =
      parsed(R"({"model_type": "minimax_m3_vl", "text_config": {"num_hidden_layers": 5}})");
  EXPECT_THAT(raw.layer_is_sparse, ElementsAre(0, 0, 0, 1, 1));
  EXPECT_THAT(raw.layer_is_moe, ElementsAre(0, 0, 0, 1, 1));
  EXPECT_EQ(raw.max_positions, 524288);
}

TEST(Config, TextFieldsMayStandAtTheTopLevel) {
  const ModelConfig config = parsed(
      R"({"architectures": ["MiniMaxM3SparseForCausalLM"], "vocab_size": 320, "hidden_size": 64,
          "num_hidden_layers": 4, "torch_dtype": "float32", "eos_token_id": [3, 4]})");
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.dtype, DType::kF32);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(3, 4));
  EXPECT_FALSE(config.vision.has_value());
}

TEST(Config, OlderRopeScalingIsUnderstood) {
  const std::string base = m3_config_json();
  const ModelConfig config =
      parsed(replaced(base, "\"rotary_dim\": 64",
                      R"("rotary_dim": 64, "rope_scaling": {"type": "yarn", "factor": 2,
           "beta_fast": 16, "beta_slow": 2, "attention_factor": 1.25, "truncate": false})"));
  EXPECT_TRUE(config.rope.yarn);
  EXPECT_EQ(config.rope.theta, 5e6);
  EXPECT_EQ(config.rope.beta_fast, 16.0);
  EXPECT_EQ(config.rope.beta_slow, 2.0);
  EXPECT_EQ(config.rope.attention_factor, 1.25);
  EXPECT_EQ(config.rope.original_max_positions, 1048576);
  EXPECT_FALSE(config.rope.truncate);
  EXPECT_FALSE(
      parsed(replaced(base, "\"rotary_dim\": 64", R"("rotary_dim": 64, "rope_scaling": null)")).rope.yarn);
}

TEST(Config, ForcedBlocksMayBeGivenInTokens) {
  std::string text = replaced(m3_config_json(), "\"sparse_init_block\": 0", "\"sparse_init_tokens\": 129");
  text = replaced(text, "\"sparse_local_block\": 1", "\"sparse_local_tokens\": 128");
  const ModelConfig config = parsed(text);
  EXPECT_EQ(config.init_blocks, 2);
  EXPECT_EQ(config.local_blocks, 2);
}

TEST(Config, TheSwitchTurnsSparseAttentionOff) {
  const ModelConfig config =
      parsed(replaced(m3_config_json(), "\"use_sparse_attention\": true", "\"use_sparse_attention\": false"));
  EXPECT_EQ(config.layer_is_sparse, std::vector<uint8_t>(60, 0));
}

TEST(Config, GenerationConfigGivesStopsAndSamplingDefaults) {
  const ModelConfig config = parsed(
      m3_config_json(),
      R"({"do_sample": true, "temperature": 1.0, "top_p": 0.95, "top_k": 40, "eos_token_id": [7, 9]})");
  EXPECT_EQ(config.temperature, 1.0);
  EXPECT_EQ(config.top_p, 0.95);
  EXPECT_EQ(config.top_k, 40);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(7, 9));
  const ModelConfig none = parsed(flat_config(), R"({"bos_token_id": 1})");
  EXPECT_FALSE(none.temperature || none.top_p || none.top_k);
  EXPECT_THAT(none.eos_token_ids, ElementsAre(2));
}

TEST(Config, WrongGenerationConfigIsAnErrorThatNamesTheField) {
  const std::string base = m3_config_json();
  EXPECT_THAT(error_of(base, R"({"eos_token_id": "x"})"), HasSubstr("generation_config.eos_token_id"));
  EXPECT_THAT(error_of(base, R"({"eos_token_id": [1, 200064]})"),
              HasSubstr("generation_config.eos_token_id[1]"));
  EXPECT_THAT(error_of(base, R"({"temperature": -1})"), HasSubstr("generation_config.temperature"));
  EXPECT_THAT(error_of(base, R"({"top_p": 1.5})"), HasSubstr("generation_config.top_p"));
  EXPECT_THAT(error_of(base, R"({"top_k": 0.5})"), HasSubstr("generation_config.top_k"));
  EXPECT_THAT(error_of(base, "[]"), HasSubstr("generation_config must be an object"));
  EXPECT_THAT(error_of(base, "{"), HasSubstr("generation_config.json is not valid JSON"));
}

struct Rejected {
  const char* from;
  const char* to;
  std::vector<const char*> named;  // parts of the message: field and value
};

TEST(Config, WhatCannotBeComputedIsAnErrorThatNamesFieldAndValue) {
  const std::vector<Rejected> cases = {
      {"\"model_type\": \"minimax_m3_vl\"", "\"model_type\": \"llama\"", {"model_type", "llama"}},
      {"\"use_gemma_norm\": true", "\"use_gemma_norm\": false", {"text_config.use_gemma_norm", "false"}},
      {"\"qk_norm_type\": \"per_head\"", "\"qk_norm_type\": \"full\"", {"text_config.qk_norm_type", "full"}},
      {"\"use_qk_norm\": true", "\"use_qk_norm\": false", {"text_config.use_qk_norm"}},
      {"\"scoring_func\": \"sigmoid\"",
       "\"scoring_func\": \"softmax\"",
       {"text_config.scoring_func", "softmax"}},
      {"\"use_routing_bias\": true", "\"use_routing_bias\": false", {"text_config.use_routing_bias"}},
      {"\"attention_output_gate\": false",
       "\"attention_output_gate\": true",
       {"text_config.attention_output_gate"}},
      {"\"sparse_score_type\": \"max\"", "\"sparse_score_type\": \"lse\"", {"sparse_score_type", "lse"}},
      {"\"sparse_num_index_heads\": 4",
       "\"sparse_num_index_heads\": 8",
       {"sparse_num_index_heads", "8", "4"}},
      {"\"sparse_index_dim\": 128", "\"sparse_index_dim\": 64", {"sparse_index_dim", "64"}},
      {"\"sparse_block_size\": 128", "\"sparse_block_size\": 64", {"sparse_block_size", "64"}},
      {"\"sparse_topk_blocks\": 16", "\"sparse_topk_blocks\": 17", {"sparse_topk_blocks", "17"}},
      {"\"sparse_topk_blocks\": 16", "\"sparse_topk_blocks\": 0", {"sparse_topk_blocks", "0"}},
      {"\"sparse_local_block\": 1", "\"sparse_local_block\": 0", {"sparse_local_block"}},
      {"\"sparse_init_block\": 0",
       "\"sparse_init_block\": 16",
       {"sparse_init_block 16", "sparse_topk_blocks 16"}},
      {"\"head_dim\": 128", "\"head_dim\": 64", {"text_config.head_dim", "64"}},
      {"\"num_attention_heads\": 64", "\"num_attention_heads\": 63", {"num_attention_heads", "63"}},
      {"\"num_attention_heads\": 64", "\"num_attention_heads\": 128", {"num_attention_heads", "128", "16"}},
      {"\"hidden_size\": 6144",
       "\"hidden_size\": 6150",
       {"text_config.hidden_size", "multiple of 32", "6150"}},
      {"\"hidden_size\": 6144", "\"hidden_size\": 0", {"text_config.hidden_size", "got 0"}},
      {"\"hidden_size\": 6144", "\"hidden_size\": -32", {"text_config.hidden_size", "got -32"}},
      {"\"hidden_size\": 6144", "\"hidden_size\": 4611686018427387904", {"text_config.hidden_size"}},
      {"\"hidden_size\": 6144", "\"hidden_size\": \"abc\"", {"text_config.hidden_size", "got \"abc\""}},
      {"\"dense_intermediate_size\": 12288",
       "\"dense_intermediate_size\": 12289",
       {"dense_intermediate_size"}},
      {"\"vocab_size\": 200064", "\"vocab_size\": 1e18", {"text_config.vocab_size"}},
      {"\"num_local_experts\": 128", "\"num_local_experts\": 3", {"num_experts_per_tok", "4", "3"}},
      {"\"num_local_experts\": 128", "\"num_local_experts\": [128]", {"num_local_experts", "[128]"}},
      {"\"num_hidden_layers\": 60", "\"num_hidden_layers\": 61", {"moe_layer_freq", "60 entries", "61"}},
      {"\"num_hidden_layers\": 60", "\"num_hidden_layers\": 2147483648", {"num_hidden_layers", "2147483648"}},
      {"\"rotary_dim\": 64", "\"rotary_dim\": 63", {"text_config.rotary_dim", "63"}},
      {"\"rotary_dim\": 64", "\"rotary_dim\": 256", {"text_config.rotary_dim", "256"}},
      {"\"rotary_dim\": 64", "\"rotary_dim\": 32", {"partial_rotary_factor", "rotary_dim 32"}},
      {"\"rope_theta\": 5000000", "\"rope_theta\": 1", {"text_config.rope_theta", "got 1"}},
      {"\"rotary_dim\": 64",
       "\"rotary_dim\": 64, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}",
       {"rope_scaling.type", "linear"}},
      {"\"rotary_dim\": 64",
       "\"rotary_dim\": 64, \"rope_scaling\": {\"type\": \"yarn\"}",
       {"rope_scaling.factor"}},
      {"\"rotary_dim\": 64",
       "\"rotary_dim\": 64, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"beta_fast\": 1, "
       "\"beta_slow\": 2}",
       {"rope_scaling.beta_fast", "got 1 and 2"}},
      {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", {"tie_word_embeddings"}},
      {"\"torch_dtype\": \"bfloat16\"", "\"torch_dtype\": \"float16\"", {"torch_dtype", "float16"}},
      {"\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 0", {"rms_norm_eps", "got 0"}},
      {"\"hidden_act\": \"swigluoai\"",
       "\"hidden_act\": \"gelu_new\"",
       {"text_config.hidden_act", "gelu_new"}},
      {"\"image_token_index\": 200025", "\"image_token_index\": 200064", {"image_token_index", "200064"}},
      {"\"patch_size\": 14", "\"patch_size\": 0", {"vision_config.patch_size"}},
      {"\"num_attention_heads\": 16", "\"num_attention_heads\": 17", {"vision_config", "17"}},
      {"\"num_attention_heads\": 16", "\"num_attention_heads\": 8", {"vision_config", "160 channels"}},
      {"\"rope_mode\": \"3d\"", "\"rope_mode\": \"2d\"", {"vision_config.rope_mode", "2d"}},
      {"\"text_config\": {",
       "\"quantization_config\": {\"quant_method\": \"gptq\"}, \"text_config\": {",
       {"quantization_config.quant_method", "gptq"}},
      {"\"text_config\": {",
       "\"quantization_config\": {}, \"text_config\": {",
       {"quantization_config.quant_method"}},
      {"\"text_config\": {",
       "\"quantization_config\": {\"quant_method\": \"mxfp8\", \"weight_block_size\": [128, 128]}, "
       "\"text_config\": {",
       {"quantization_config.weight_block_size", "[128, 128]"}},
  };
  for (const Rejected& item : cases) {
    const std::string message = error_of(replaced(m3_config_json(), item.from, item.to));
    for (const char* part : item.named) EXPECT_THAT(message, HasSubstr(part)) << item.to;
  }
}

// As Quark writes it, with some of the fields that are read.
std::string quark(std::string_view weight, std::string_view more = "") {
  return replaced(m3_config_json(), "\"text_config\": {",
                  strf(R"("quantization_config": {{"quant_method": "quark",
    "global_quant_config": {{"weight": {{{}}}, "input_tensors": {{"dtype": "fp4", "is_dynamic": true}}}},
    "exclude": ["*lm_head", "language_model.model.layers.0.self_attn.q_proj"]{}}},
  "text_config": {{)",
                       weight, more));
}
constexpr std::string_view kFp4 =
    R"("dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0", "is_dynamic": false)";

TEST(Config, QuarksMxfp4IsReadWithWhatItLeavesOut) {
  const ModelConfig config = parsed(quark(
      kFp4,
      R"(, "layer_quant_config": {}, "export": {"weight_format": "real_quantized", "pack_method": "reorder"})"));
  EXPECT_EQ(config.quant, QuantFormat::kMxfp4);
  EXPECT_EQ(config.unquantised,
            (std::vector<std::string>{"*lm_head", "language_model.model.layers.0.self_attn.q_proj"}));
  EXPECT_EQ(parsed(test::m3_mxfp8_config_json()).unquantised.front(), "lm_head");
}

TEST(Config, LayersInMxfp8AreReadBesideMxfp4) {
  const std::string weight = replaced(std::string(kFp4), "fp4", "fp8_e4m3");
  const ModelConfig config = parsed(quark(
      kFp4,
      strf(
          R"(, "layer_quant_config": {{"*self_attn*": {{"weight": {{{0}}}}}, "*mlp*": {{"weight": {{{0}}}}}}})",
          weight)));
  EXPECT_EQ(config.quant, QuantFormat::kMxfp4Mxfp8);
  EXPECT_EQ(config.mxfp8, (std::vector<std::string>{"*self_attn*", "*mlp*"}));
  EXPECT_EQ(config.unquantised.size(), 2);
}

TEST(Config, WhatQuarkCanAlsoWriteIsAnErrorThatNamesFieldAndValue) {
  const auto changed = [](std::string_view from, std::string_view to) {
    return error_of(quark(replaced(std::string(kFp4), from, to)));
  };
  const std::string at = "quantization_config.global_quant_config.weight.";
  EXPECT_THAT(changed("\"fp4\"", "\"fp8_e4m3\""), HasSubstr(at + "dtype is \"fp8_e4m3\""));
  EXPECT_THAT(changed("\"dtype\"", "\"type\""), HasSubstr(at + "dtype is missing"));
  EXPECT_THAT(changed("per_group", "per_tensor"), HasSubstr(at + "qscheme is \"per_tensor\""));
  EXPECT_THAT(changed("32", "16"), HasSubstr(at + "group_size is 16"));
  EXPECT_THAT(changed("\"e8m0\"", "\"e4m3\""), HasSubstr(at + "scale_format is \"e4m3\""));
  EXPECT_THAT(changed("false", "true"), HasSubstr(at + "is_dynamic is true"));
  EXPECT_THAT(error_of(quark(kFp4, R"(, "layer_quant_config": {"*self_attn*": {}})")),
              HasSubstr("quantization_config.layer_quant_config.*self_attn*.weight"));
  EXPECT_THAT(
      error_of(quark(kFp4, strf(R"(, "layer_quant_config": {{"*self_attn*": {{"weight": {{{}}}}}}})", kFp4))),
      HasSubstr("layer_quant_config.*self_attn*.weight.dtype is \"fp4\"; only \"fp8_e4m3\""));
  EXPECT_THAT(error_of(quark(kFp4, R"(, "layer_quant_config": ["*self_attn*"])")),
              HasSubstr("quantization_config.layer_quant_config"));
  EXPECT_THAT(error_of(quark(kFp4, R"(, "layer_type_quant_config": {"Linear": {}})")),
              HasSubstr("quantization_config.layer_type_quant_config is {"));
  EXPECT_THAT(error_of(quark(kFp4, R"(, "export": {"weight_format": "fake_quantized"})")),
              HasSubstr("quantization_config.export.weight_format is \"fake_quantized\""));
  EXPECT_THAT(error_of(replaced(quark(kFp4), "\"*lm_head\"", "7")),
              HasSubstr("quantization_config.exclude[0]"));
}

TEST(Config, ASparseLayerWithIndexValuesIsAnErrorThatNamesTheLayer) {
  std::string text = m3_config_json();
  const size_t list = text.find("[0, 0, 0, 1, 1", text.find("sparse_disable_index_value"));
  text[list + 13] = '0';  // layer 4
  EXPECT_THAT(error_of(text), HasSubstr("sparse_disable_index_value[4]"));
}

TEST(Config, WrongEntriesOfLayerListsAreErrorsThatNameTheEntry) {
  EXPECT_THAT(error_of(flat_config(R"(, "layer_types": ["full_attention", "sliding_attention"])")),
              HasSubstr("layer_types[1]"));
  EXPECT_THAT(error_of(flat_config(R"(, "mlp_layer_types": ["dense"])")),
              HasSubstr("mlp_layer_types has 1 entries"));
  EXPECT_THAT(error_of(flat_config(R"(, "moe_layer_freq": [0, 2])")), HasSubstr("moe_layer_freq[1]"));
  EXPECT_THAT(error_of(flat_config(R"(, "moe_layer_freq": 1)")), HasSubstr("moe_layer_freq must be a list"));
}

TEST(Config, TextThatIsNoConfigurationIsAnError) {
  EXPECT_THAT(error_of(""), HasSubstr("config.json is not valid JSON"));
  EXPECT_THAT(error_of("{}"), HasSubstr("architectures is missing"));
  EXPECT_THAT(error_of("[]"), HasSubstr("must be an object"));
  EXPECT_THAT(error_of(R"({"architectures": ["LlamaForCausalLM"]})"), HasSubstr("LlamaForCausalLM"));
  EXPECT_THAT(error_of(R"({"model_type": "minimax_m3_vl", "text_config": []})"),
              HasSubstr("text_config must be"));
  std::string nested = R"({"model_type": "minimax_m3_vl", "x": )";
  nested += std::string(100000, '[') + std::string(100000, ']') + "}";
  EXPECT_THAT(error_of(nested), HasSubstr("config.json is nested more than 64 levels deep"));
}

TEST(Config, LoadingNamesTheFolderOrTheFileThatIsMissing) {
  const test::TempDir dir;
  EXPECT_THAT(load_config(dir.path() / "absent").error().message,
              ::testing::EndsWith("absent' is not a folder"));
  EXPECT_THAT(load_config("MiniMaxAI/MiniMax-M3").error().message,
              HasSubstr("hf download MiniMaxAI/MiniMax-M3 --local-dir MiniMax-M3"));
  EXPECT_THAT(load_config(dir.path()).error().message, HasSubstr("config.json"));
  ASSERT_TRUE(write_text_file(dir.path() / "config.json", "{").ok());
  EXPECT_THAT(load_config(dir.path()).error().message, HasSubstr(dir.path().string()));
}

TEST(Config, TheGoldenConfigurationsLoad) {
  const std::filesystem::path golden = SPARROW_GOLDEN_DIR;
  for (const char* name : {"f32", "bf16", "yarn"}) {
    const auto config = load_config(golden / name);
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_EQ(config->dtype, std::string(name) == "bf16" ? DType::kBF16 : DType::kF32);
    EXPECT_EQ(config->rope.yarn, std::string(name) == "yarn");
    EXPECT_EQ(config->layer_is_sparse[0], 0);
    EXPECT_EQ(config->layer_is_sparse[1], 1);
    EXPECT_THAT(config->eos_token_ids, ElementsAre(2));
  }
}

}  // namespace
}  // namespace sparrow
