// SPDX-License-Identifier: Apache-2.0
#include "config/config.h"

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "base/files/mapped_file.h"
#include "base/json/json.h"
#include "base/math.h"
#include "config/config_fields.h"
#include "config/overrides.h"

namespace sparrow {
namespace {

// Far above any model of this family, and small enough that no product of sizes overflows 64 bits.
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxHidden = 1 << 16;
constexpr int64_t kMaxIntermediate = 1 << 20;
constexpr int64_t kMaxLayers = 256;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxExperts = 1024;
constexpr int64_t kMaxPositions = 1 << 30;

// What the attention kernels are written for.
constexpr int kHeadDim = 128;
constexpr int kBlockTokens = 128;
constexpr int kMaxTopKBlocks = 16;
constexpr int kMaxQueryGroup = 16;

constexpr int32_t kDefaultEos = 200020;
constexpr size_t kMaxConfigBytes = size_t{4} << 20;

Status check_family(const Json& top) {
  if (const auto type = top.find("model_type"))
    return require_string(top, "model_type",
                          {"minimax_m3_vl", "minimax_m3_vl_text", "minimax_m3_text", "minimax_m3"});
  const Json architectures = SPARROW_TRY(top.at("architectures"));
  SPARROW_TRY(architectures.expect_array());
  for (size_t i = 0; i < architectures.size(); ++i) {
    const std::string name = SPARROW_TRY(architectures.element(i).as_string());
    if (name == "MiniMaxM3SparseForConditionalGeneration" || name == "MiniMaxM3SparseForCausalLM")
      return Ok{};
  }
  return unsupported(
      strf("architectures is {}; only the MiniMax-M3 family is supported", architectures.brief()));
}

Result<DType> read_dtype(const Json& top, const Json& text) {
  for (const Json* object : {&top, &text}) {
    for (const char* key : {"dtype", "torch_dtype"}) {
      const auto found = object->find(key);
      if (!found) continue;
      SPARROW_TRY(require_string(*object, key, {"bfloat16", "float32"}));
      const std::string name = SPARROW_TRY(found->as_string());
      return name == "float32" ? DType::kF32 : DType::kBF16;
    }
  }
  return DType::kBF16;
}

// One field of the indexer: nested in sparse_attention_config, or flat beside the others.
std::optional<Json> find_index_field(const Json& text, const std::optional<Json>& sparse,
                                     std::string_view nested, std::string_view flat) {
  if (sparse)
    if (auto found = sparse->find(nested)) return found;
  return text.find(flat);
}

Result<int> forced_blocks(const std::optional<Json>& blocks, const std::optional<Json>& sparse,
                          std::string_view tokens_key, int extra, int fallback) {
  if (blocks) return static_cast<int>(SPARROW_TRY(blocks->as_int(0, kMaxTopKBlocks)));
  const auto tokens = sparse ? sparse->find(tokens_key) : std::nullopt;
  if (!tokens) return fallback;
  const int64_t count = SPARROW_TRY(tokens->as_int(0, kMaxTopKBlocks * kBlockTokens));
  return static_cast<int>(ceil_div(count, kBlockTokens)) + extra;
}

Status read_sparse_attention(const Json& text, ModelConfig& config) {
  const auto sparse = text.find("sparse_attention_config");
  if (sparse) SPARROW_TRY(sparse->expect_object());
  config.layer_is_sparse = SPARROW_TRY(read_sparse_layers(text, sparse, config.num_layers));

  struct Fixed {
    std::string_view nested, flat;
    int wanted;
  };
  for (const Fixed& field : {Fixed{"sparse_index_dim", "index_head_dim", kHeadDim},
                             Fixed{"sparse_block_size", "index_block_size", kBlockTokens},
                             Fixed{"sparse_num_index_heads", "index_n_heads", config.num_kv_heads}}) {
    const auto found = find_index_field(text, sparse, field.nested, field.flat);
    if (!found) continue;
    const int64_t value = SPARROW_TRY(found->as_int(INT64_MIN, INT64_MAX));
    if (value != field.wanted)
      return unsupported(strf("{} is {}; only {} is supported{}", found->path(), value, field.wanted,
                              field.flat == "index_n_heads" ? " (num_key_value_heads)" : ""));
  }
  if (const auto top_k = find_index_field(text, sparse, "sparse_topk_blocks", "index_topk_blocks"))
    config.top_k_blocks = static_cast<int>(SPARROW_TRY(top_k->as_int(1, kMaxTopKBlocks)));
  config.local_blocks =
      SPARROW_TRY(forced_blocks(find_index_field(text, sparse, "sparse_local_block", "index_local_blocks"),
                                sparse, "sparse_local_tokens", /*extra=*/1, /*fallback=*/1));
  config.init_blocks = SPARROW_TRY(forced_blocks(sparse ? sparse->find("sparse_init_block") : std::nullopt,
                                                 sparse, "sparse_init_tokens", /*extra=*/0, /*fallback=*/0));
  if (config.local_blocks < 1)
    return unsupported("sparse_local_block is 0; a query must always see its own block");
  if (config.local_blocks + config.init_blocks > config.top_k_blocks)
    return Error{Errc::kInvalidArgument,
                 strf("sparse_local_block {} and sparse_init_block {} do not fit into sparse_topk_blocks {}",
                      config.local_blocks, config.init_blocks, config.top_k_blocks)};
  if (!sparse) return Ok{};
  SPARROW_TRY(require_string(*sparse, "sparse_score_type", {"max"}));
  const auto disable = sparse->find("sparse_disable_index_value");
  if (!disable) return Ok{};
  const LayerFlags disabled = SPARROW_TRY(read_freq(*disable, config.num_layers));
  for (size_t i = 0; i < disabled.size(); ++i)
    if (config.layer_is_sparse[i] && !disabled[i])
      return unsupported(
          strf("{}[{}] is 0, but layer {} is sparse; index values are not supported", disable->path(), i, i));
  return Ok{};
}

Status read_heads(const Json& text, ModelConfig& config) {
  config.num_query_heads = SPARROW_TRY(read_size(text, "num_attention_heads", 64, kMaxHeads));
  config.num_kv_heads = SPARROW_TRY(read_size(text, "num_key_value_heads", 4, kMaxHeads));
  SPARROW_TRY(require_int(text, "head_dim", kHeadDim));
  config.head_dim = kHeadDim;
  const std::string got =
      strf("got {} query heads and {} KV heads", config.num_query_heads, config.num_kv_heads);
  if (config.num_query_heads % config.num_kv_heads != 0)
    return Error{Errc::kInvalidArgument,
                 "num_attention_heads must be a multiple of num_key_value_heads, " + got};
  if (config.num_query_heads / config.num_kv_heads > kMaxQueryGroup)
    return unsupported(
        strf("num_attention_heads must be at most {} times num_key_value_heads, {}", kMaxQueryGroup, got));
  return Ok{};
}

Status read_experts(const Json& text, ModelConfig& config) {
  config.expert_intermediate_size =
      SPARROW_TRY(read_multiple(text, "intermediate_size", 3072, kMaxIntermediate));
  config.dense_intermediate_size =
      SPARROW_TRY(read_multiple(text, "dense_intermediate_size", 12288, kMaxIntermediate));
  const int shared = SPARROW_TRY(read_size(text, "n_shared_experts", 1, 64));
  const int64_t shared_size = int64_t{config.expert_intermediate_size} * shared;
  if (shared_size > kMaxIntermediate)
    return text.find("n_shared_experts")
        ->error(strf("times intermediate_size must be at most {}", kMaxIntermediate));
  config.shared_intermediate_size = SPARROW_TRY(
      read_multiple(text, "shared_intermediate_size", static_cast<int>(shared_size), kMaxIntermediate));
  const char* const experts_key = text.find("num_local_experts") ? "num_local_experts" : "num_experts";
  config.num_experts = SPARROW_TRY(read_size(text, experts_key, 128, kMaxExperts));
  config.experts_per_token = SPARROW_TRY(read_size(text, "num_experts_per_tok", 4, kMaxExperts));
  if (config.experts_per_token > config.num_experts)
    return Error{Errc::kInvalidArgument, strf("num_experts_per_tok must be at most {} ({}), got {}",
                                              config.num_experts, experts_key, config.experts_per_token)};
  config.layer_is_moe = SPARROW_TRY(read_moe_layers(text, config.num_layers));
  SPARROW_TRY(require_string(text, "scoring_func", {"sigmoid"}));
  SPARROW_TRY(require_bool(text, "use_routing_bias", true));
  config.routed_scaling_factor = SPARROW_TRY(read_float(text, "routed_scaling_factor", 2.0, 0.0, 1e6));
  // transformers overwrites the name with silu and computes the clamped variant all the same.
  SPARROW_TRY(require_string(text, "hidden_act", {"swigluoai", "silu"}));
  config.swiglu_alpha = SPARROW_TRY(read_float(text, "swiglu_alpha", 1.702, -1e6, 1e6));
  config.swiglu_limit = SPARROW_TRY(read_float(text, "swiglu_limit", 7.0, 0.0, 1e6));
  config.swiglu_beta = SPARROW_TRY(read_float(text, "swiglu_beta", 1.0, -1e6, 1e6));
  return Ok{};
}

Status read_text(const Json& text, ModelConfig& config) {
  config.vocab_size = SPARROW_TRY(read_size(text, "vocab_size", 200064, kMaxVocab));
  config.hidden_size = SPARROW_TRY(read_multiple(text, "hidden_size", 6144, kMaxHidden));
  config.num_layers = SPARROW_TRY(read_size(text, "num_hidden_layers", 60, kMaxLayers));
  config.max_positions = SPARROW_TRY(text.int_or("max_position_embeddings", 524288, 1, kMaxPositions));
  config.rms_norm_eps = SPARROW_TRY(read_float(text, "rms_norm_eps", 1e-6, 1e-12, 1.0));
  SPARROW_TRY(require_bool(text, "use_gemma_norm", true));
  SPARROW_TRY(require_bool(text, "use_qk_norm", true));
  SPARROW_TRY(require_string(text, "qk_norm_type", {"per_head"}));
  SPARROW_TRY(require_bool(text, "attention_output_gate", false));
  SPARROW_TRY(require_bool(text, "tie_word_embeddings", false));
  SPARROW_TRY(read_heads(text, config));
  SPARROW_TRY(read_experts(text, config));
  SPARROW_TRY(read_sparse_attention(text, config));
  config.rope = SPARROW_TRY(read_rope(text, config.head_dim, config.max_positions));
  return Ok{};
}

Result<int32_t> read_token(const Json& top, std::string_view key, std::string_view alias, int32_t fallback,
                           int vocab_size) {
  const std::string_view present = top.find(key) ? key : alias;
  return static_cast<int32_t>(SPARROW_TRY(top.int_or(present, fallback, 0, vocab_size - 1)));
}

Result<VisionConfig> read_vision(const Json& top, const Json& vision, const ModelConfig& config) {
  SPARROW_TRY(vision.expect_object());
  VisionConfig v;
  v.hidden_size = SPARROW_TRY(read_size(vision, "hidden_size", 1280, kMaxHidden));
  v.num_heads = SPARROW_TRY(read_size(vision, "num_attention_heads", 16, kMaxHeads));
  if (v.hidden_size % v.num_heads != 0)
    return Error{Errc::kInvalidArgument,
                 strf("vision_config.hidden_size must be a multiple of num_attention_heads, "
                      "got {} and {}",
                      v.hidden_size, v.num_heads)};
  constexpr int kMaxVisionHeadDim = 128;
  if (v.hidden_size / v.num_heads > kMaxVisionHeadDim)
    return Error{
        Errc::kUnsupported,
        strf("vision_config: heads of {} channels (hidden_size {} of {} heads); at most {} are computed here",
             v.hidden_size / v.num_heads, v.hidden_size, v.num_heads, kMaxVisionHeadDim)};
  v.num_layers = SPARROW_TRY(read_size(vision, "num_hidden_layers", 32, kMaxLayers));
  v.intermediate_size = SPARROW_TRY(read_size(vision, "intermediate_size", 5120, kMaxIntermediate));
  v.num_channels = SPARROW_TRY(read_size(vision, "num_channels", 3, 16));
  v.patch_size = SPARROW_TRY(read_size(vision, "patch_size", 14, 256));
  v.layer_norm_eps = SPARROW_TRY(read_float(vision, "layer_norm_eps", 1e-5, 1e-12, 1.0));
  v.segment_max_frames = SPARROW_TRY(read_size(vision, "vision_segment_max_frames", 4, 1 << 20));
  SPARROW_TRY(require_string(vision, "hidden_act", {"gelu"}));
  SPARROW_TRY(require_string(vision, "position_embedding_type", {"rope"}));
  SPARROW_TRY(require_string(vision, "rope_mode", {"3d"}));
  const auto rope = vision.find("rope_parameters");
  v.rope_theta = SPARROW_TRY(read_number(rope ? *rope : vision, "rope_theta", 10000.0, 2.0, 1e15));

  std::optional<Json> merge = vision.find("img_token_compression_config");
  if (!merge) merge = top.find("img_token_compression_config");
  for (const auto& [key, field, fallback] : {std::tuple{"spatial_merge_size", &v.spatial_merge_size, 2},
                                             std::tuple{"temporal_patch_size", &v.temporal_patch_size, 2}})
    *field = SPARROW_TRY(read_size(!vision.find(key) && merge ? *merge : vision, key, fallback, 16));
  v.projector_hidden_size =
      SPARROW_TRY(read_size(top, "projector_hidden_size", config.hidden_size, kMaxHidden));
  SPARROW_TRY(require_bool(top, "multimodal_projector_bias", true));
  SPARROW_TRY(require_bool(top, "patch_merge_bias", true));
  SPARROW_TRY(require_string(top, "projector_hidden_act", {"gelu"}));
  v.image_token_id =
      SPARROW_TRY(read_token(top, "image_token_index", "image_token_id", 200025, config.vocab_size));
  v.video_token_id =
      SPARROW_TRY(read_token(top, "video_token_index", "video_token_id", 200026, config.vocab_size));
  return v;
}

Result<std::vector<int32_t>> read_eos(const Json& field, int vocab_size) {
  std::vector<int32_t> ids;
  const size_t count = field.is_array() ? field.size() : 1;
  for (size_t i = 0; i < count; ++i) {
    const Json entry = field.is_array() ? field.element(i) : field;
    ids.push_back(static_cast<int32_t>(SPARROW_TRY(entry.as_int(0, vocab_size - 1))));
  }
  return ids;
}

Status read_generation(const Json& generation, ModelConfig& config) {
  SPARROW_TRY(generation.expect_object());
  if (generation.find("temperature"))
    config.temperature = SPARROW_TRY(read_number(generation, "temperature", 1.0, 0.0, 100.0));
  if (generation.find("top_p")) config.top_p = SPARROW_TRY(read_number(generation, "top_p", 1.0, 0.0, 1.0));
  if (const auto top_k = generation.find("top_k"))
    config.top_k = static_cast<int>(SPARROW_TRY(top_k->as_int(0, INT32_MAX)));
  if (const auto eos = generation.find("eos_token_id"))
    config.eos_token_ids = SPARROW_TRY(read_eos(*eos, config.vocab_size));
  return Ok{};
}

// What is called like a repository of Hugging Face may be one.
std::string download_hint(const std::filesystem::path& path) {
  const std::string name = path.string();
  if (name.starts_with('.') || std::count(name.begin(), name.end(), '/') != 1 || name.starts_with('/') ||
      name.ends_with('/'))
    return "";
  return strf("; if it is a model of Hugging Face's, get its files first: hf download {} --local-dir {}",
              name, path.filename().string());
}

}  // namespace

Result<ModelConfig> parse_config(std::string_view config_json, std::string_view generation_config_json) {
  const JsonLimits limits{.max_bytes = kMaxConfigBytes};
  const JsonDocument document = SPARROW_TRY(JsonDocument::parse(config_json, "config.json", limits));
  const Json top = document.root();
  SPARROW_TRY(top.expect_object());
  SPARROW_TRY(check_family(top));
  const auto nested = top.find("text_config");
  const Json& text = nested ? *nested : top;
  SPARROW_TRY(text.expect_object());
  SPARROW_TRY(require_bool(top, "tie_word_embeddings", false));

  ModelConfig config;
  config.dtype = SPARROW_TRY(read_dtype(top, text));
  const auto quant =
      top.find("quantization_config") ? top.find("quantization_config") : text.find("quantization_config");
  if (quant) SPARROW_TRY(read_quantization(*quant, config));
  SPARROW_TRY(read_text(text, config));
  if (const auto vision = top.find("vision_config"))
    config.vision = SPARROW_TRY(read_vision(top, *vision, config));

  if (!generation_config_json.empty()) {
    const JsonDocument generation =
        SPARROW_TRY(JsonDocument::parse(generation_config_json, "generation_config.json", limits));
    SPARROW_TRY(read_generation(generation.root("generation_config"), config));
  }
  if (!config.eos_token_ids.empty()) return config;
  const auto eos = text.find("eos_token_id") ? text.find("eos_token_id") : top.find("eos_token_id");
  if (eos)
    config.eos_token_ids = SPARROW_TRY(read_eos(*eos, config.vocab_size));
  else if (kDefaultEos < config.vocab_size)
    config.eos_token_ids = {kDefaultEos};
  return config;
}

Result<ModelConfig> load_config(const std::filesystem::path& path, std::string_view overrides) {
  std::error_code ec;
  const bool is_file = std::filesystem::is_regular_file(path, ec);
  if (!is_file && !std::filesystem::is_directory(path, ec))
    return Error{Errc::kNotFound, strf("{} is not a folder{}", quoted(path), download_hint(path))};
  std::string config_json =
      SPARROW_TRY(read_text_file(is_file ? path : path / "config.json", kMaxConfigBytes));
  const std::filesystem::path generation_path =
      (is_file ? path.parent_path() : path) / "generation_config.json";
  std::string generation_json;
  if (std::filesystem::exists(generation_path, ec))
    generation_json = SPARROW_TRY(read_text_file(generation_path, kMaxConfigBytes));
  if (!overrides.empty()) config_json = SPARROW_TRY(override_config(config_json, overrides));
  auto config = parse_config(config_json, generation_json);
  if (config.ok()) return config;
  return Error{config.error().code,
               strf("{}{}: {}", quoted(path), overrides.empty() ? "" : " with --hf-overrides",
                    config.error().message)};
}

}  // namespace sparrow
