// SPDX-License-Identifier: Apache-2.0
#include "config/overrides.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/json/json.h"
#include "base/json/json_writer.h"

namespace sparrow {
namespace {

constexpr std::string_view kFlag = "--hf-overrides";

using Names = std::span<const std::string_view>;

// What parse_config() reads, by the object it reads it from.
constexpr std::string_view kTextFields[] = {"vocab_size",
                                            "hidden_size",
                                            "num_hidden_layers",
                                            "num_attention_heads",
                                            "num_key_value_heads",
                                            "head_dim",
                                            "intermediate_size",
                                            "dense_intermediate_size",
                                            "shared_intermediate_size",
                                            "n_shared_experts",
                                            "num_local_experts",
                                            "num_experts",
                                            "num_experts_per_tok",
                                            "moe_layer_freq",
                                            "mlp_layer_types",
                                            "scoring_func",
                                            "use_routing_bias",
                                            "routed_scaling_factor",
                                            "hidden_act",
                                            "swiglu_alpha",
                                            "swiglu_limit",
                                            "swiglu_beta",
                                            "rms_norm_eps",
                                            "use_gemma_norm",
                                            "use_qk_norm",
                                            "qk_norm_type",
                                            "attention_output_gate",
                                            "rope_theta",
                                            "rotary_dim",
                                            "partial_rotary_factor",
                                            "rope_scaling",
                                            "rope_parameters",
                                            "max_position_embeddings",
                                            "tie_word_embeddings",
                                            "sparse_attention_config",
                                            "layer_types",
                                            "index_head_dim",
                                            "index_block_size",
                                            "index_n_heads",
                                            "index_topk_blocks",
                                            "index_local_blocks"};
constexpr std::string_view kRopeFields[] = {"rope_type",
                                            "type",
                                            "factor",
                                            "beta_fast",
                                            "beta_slow",
                                            "attention_factor",
                                            "original_max_position_embeddings",
                                            "truncate",
                                            "mscale",
                                            "mscale_all_dim",
                                            "rope_theta",
                                            "partial_rotary_factor"};
constexpr std::string_view kSparseFields[] = {
    "use_sparse_attention", "sparse_index_dim",   "sparse_num_index_heads",     "sparse_topk_blocks",
    "sparse_block_size",    "sparse_local_block", "sparse_local_tokens",        "sparse_init_block",
    "sparse_init_tokens",   "sparse_score_type",  "sparse_disable_index_value", "sparse_attention_freq"};
constexpr std::string_view kVisionFields[] = {"hidden_size",        "num_attention_heads",
                                              "num_hidden_layers",  "intermediate_size",
                                              "num_channels",       "patch_size",
                                              "layer_norm_eps",     "vision_segment_max_frames",
                                              "hidden_act",         "position_embedding_type",
                                              "rope_mode",          "rope_theta",
                                              "spatial_merge_size", "temporal_patch_size"};
constexpr std::string_view kTopFields[] = {"text_config",
                                           "vision_config",
                                           "dtype",
                                           "torch_dtype",
                                           "quantization_config",
                                           "projector_hidden_size",
                                           "projector_hidden_act",
                                           "multimodal_projector_bias",
                                           "patch_merge_bias",
                                           "image_token_index",
                                           "image_token_id",
                                           "video_token_index",
                                           "video_token_id"};
constexpr std::string_view kQuantFields[] = {
    "quant_method", "weight_block_size",  "activation_scheme",       "ignored_layers", "global_quant_config",
    "exclude",      "layer_quant_config", "layer_type_quant_config", "export"};
constexpr std::string_view kQuarkFields[] = {"weight"};
constexpr std::string_view kQuarkWeightFields[] = {"dtype",   "qscheme",    "group_size",    "scale_format",
                                                   "ch_axis", "is_dynamic", "is_scale_quant"};
constexpr std::string_view kQuarkExportFields[] = {"weight_format", "pack_method"};

bool contains(Names names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A document that can be changed. What is no object stays as JSON text.
struct Tree {
  bool is_object = false;
  std::string text;
  std::vector<std::string> keys;
  std::vector<Tree> values;  // of the keys

  Tree* find(std::string_view key) {
    const auto found = std::find(keys.begin(), keys.end(), key);
    return found == keys.end() ? nullptr : &values[static_cast<size_t>(found - keys.begin())];
  }
  // As Json::find: null is absent.
  bool has(std::string_view key) {
    const Tree* found = find(key);
    return found && found->text != "null";
  }
  Tree& at(std::string_view key) {
    if (Tree* found = find(key)) return *found;
    keys.emplace_back(key);
    return values.emplace_back();
  }
  std::optional<Tree> take(std::string_view key) {
    Tree* const found = find(key);
    if (!found) return std::nullopt;
    Tree taken = std::move(*found);
    const auto at = found - values.data();
    keys.erase(keys.begin() + at);
    values.erase(values.begin() + at);
    return taken;
  }
};

Tree tree_of(const Json& json) {
  Tree tree;
  tree.is_object = json.is_object();
  if (!tree.is_object) {
    JsonWriter out;
    write_json(json, out);
    tree.text = out.take();
    return tree;
  }
  for (size_t i = 0; i < json.size(); ++i) {
    tree.keys.emplace_back(json.key(i));
    tree.values.push_back(tree_of(json.member(i)));
  }
  return tree;
}

void write(const Tree& tree, JsonWriter& out) {
  if (!tree.is_object) {
    out.raw(tree.text);
    return;
  }
  out.begin_object();
  for (size_t i = 0; i < tree.keys.size(); ++i) write(tree.values[i], out.key(tree.keys[i]));
  out.end_object();
}

void merge(Tree& base, Tree over) {
  if (!base.is_object || !over.is_object) {
    base = std::move(over);
    return;
  }
  for (size_t i = 0; i < over.keys.size(); ++i) merge(base.at(over.keys[i]), std::move(over.values[i]));
}

Status check_names(const Json& object, Names known, std::string_view where) {
  SPARROW_TRY(object.expect_object());
  for (size_t i = 0; i < object.size(); ++i)
    if (!contains(known, object.key(i)))
      return Error{Errc::kInvalidArgument,
                   strf("{} is {}, and {} has no such field", object.member(i).path(),
                        object.member(i).brief(), where),
                   object.member(i).path()};
  return Ok{};
}

Status check_text(const Json& object) {
  for (const auto& [key, known] : {std::pair<std::string_view, Names>{"rope_scaling", kRopeFields},
                                   {"rope_parameters", kRopeFields},
                                   {"sparse_attention_config", kSparseFields}})
    if (const auto inner = object.find(key)) SPARROW_TRY(check_names(*inner, known, key));
  if (object.find("rope_scaling") && object.find("rope_parameters"))
    return Error{Errc::kInvalidArgument, strf("{} and rope_parameters are two spellings of one field",
                                              object.find("rope_scaling")->path())};
  return Ok{};
}

Status check_quantization(const Json& quant) {
  SPARROW_TRY(check_names(quant, kQuantFields, "quantization_config"));
  if (const auto exported = quant.find("export"))
    SPARROW_TRY(check_names(*exported, kQuarkExportFields, "export"));
  const auto quark = quant.find("global_quant_config");
  if (!quark) return Ok{};
  SPARROW_TRY(check_names(*quark, kQuarkFields, "global_quant_config"));
  if (const auto weight = quark->find("weight"))
    SPARROW_TRY(check_names(*weight, kQuarkWeightFields, "global_quant_config.weight"));
  return Ok{};
}

// Every field is one that is read, and lies where it is read.
Status check_fields(const Json& top, bool nested) {
  SPARROW_TRY(top.expect_object());
  for (size_t i = 0; i < top.size(); ++i) {
    const std::string_view key = top.key(i);
    if (contains(kTopFields, key)) continue;
    const Json value = top.member(i);
    if (!contains(kTextFields, key))
      return Error{Errc::kInvalidArgument,
                   strf("{} is {}, and the configuration has no such field", key, value.brief()),
                   std::string(key)};
    if (nested)
      return Error{Errc::kInvalidArgument,
                   strf("{} is {} at the top level, but it belongs to the text model: {{\"text_config\": "
                        "{{{}: ...}}}}",
                        key, value.brief(), json_quoted(key)),
                   std::string(key)};
  }
  SPARROW_TRY(check_text(top));
  if (const auto text = top.find("text_config")) {
    SPARROW_TRY(check_names(*text, kTextFields, "the text model's configuration"));
    SPARROW_TRY(check_text(*text));
    for (size_t i = 0; i < text->size(); ++i)
      if (top.find(text->key(i)))
        return Error{Errc::kInvalidArgument,
                     strf("{} is given twice, at the top level and in text_config", text->key(i))};
  }
  if (const auto vision = top.find("vision_config"))
    SPARROW_TRY(check_names(*vision, kVisionFields, "the vision model's configuration"));
  if (const auto quant = top.find("quantization_config")) SPARROW_TRY(check_quantization(*quant));
  return Ok{};
}

struct Spelling {
  std::string_view one, other;
};

// An override in one spelling goes to the other as well, if the file has that one.
void respell(Tree& base, Tree& over, std::span<const Spelling> spellings) {
  for (const auto& [one, other] : spellings)
    for (const auto& [from, to] : {std::pair{one, other}, std::pair{other, one}}) {
      if (!over.find(from) || over.find(to) || !base.has(to)) continue;
      Tree value = *over.find(from);
      over.at(to) = std::move(value);
    }
}

// The rotary parameters of an override, where this file's reader looks for them: all in rope_parameters if
// there is one, else rope_scaling with theta and the rotated part beside it.
void place_rope(Tree& base, Tree& over) {
  constexpr std::array<std::string_view, 2> kBeside = {"rope_theta", "partial_rotary_factor"};
  std::optional<Tree> rope = over.take("rope_parameters");
  if (!rope) rope = over.take("rope_scaling");
  const bool inside = base.has("rope_parameters");
  const char* const key = inside ? "rope_parameters" : "rope_scaling";
  if (rope && rope->is_object) {
    if (rope->find("type")) rope->at("rope_type") = *rope->take("type");
    for (const std::string_view name : kBeside)
      if (!inside && rope->find(name)) over.at(name) = *rope->take(name);
  }
  for (const std::string_view name : kBeside) {
    if (!inside || !over.find(name)) continue;
    if (!rope) rope = Tree{.is_object = true};
    if (rope->is_object) rope->at(name) = *over.take(name);
  }
  if (rope) over.at(key) = std::move(*rope);
}

// The indexer's fields, flat beside the others or nested in an object of their own.
void place_index(Tree& base, Tree& over) {
  constexpr std::array kIndex = {Spelling{"index_head_dim", "sparse_index_dim"},
                                 Spelling{"index_block_size", "sparse_block_size"},
                                 Spelling{"index_n_heads", "sparse_num_index_heads"},
                                 Spelling{"index_topk_blocks", "sparse_topk_blocks"},
                                 Spelling{"index_local_blocks", "sparse_local_block"}};
  if (base.has("sparse_attention_config"))
    for (const auto& [flat, nested] : kIndex) {
      std::optional<Tree> value = over.take(flat);
      if (!value) continue;
      Tree& sparse = over.at("sparse_attention_config");
      sparse.is_object = true;
      sparse.at(nested) = std::move(*value);
    }
  // A list by name counts before a list of 0 and 1.
  if (Tree* sparse = over.find("sparse_attention_config"); sparse && sparse->has("sparse_attention_freq"))
    base.take("layer_types");
  if (over.has("moe_layer_freq")) base.take("mlp_layer_types");
}

Error named(const Error& error) {
  return {error.code, strf("{}: {}", kFlag, error.message), error.field};
}

}  // namespace

Result<std::string> override_config(std::string_view config_json, std::string_view overrides_json) {
  const JsonDocument config = SPARROW_TRY(JsonDocument::parse(config_json, "config.json"));
  const JsonDocument overrides = SPARROW_TRY(JsonDocument::parse(overrides_json, kFlag));
  SPARROW_TRY(config.root().expect_object());
  const std::optional<Json> nested = config.root().find("text_config");
  if (nested) SPARROW_TRY(nested->expect_object());
  if (const Status status = check_fields(overrides.root(), nested.has_value()); !status.ok())
    return named(status.error());
  if (overrides.root().find("vision_config") && !config.root().find("vision_config"))
    return Error{Errc::kInvalidArgument, strf("{}: vision_config, but this model has no vision", kFlag)};

  Tree base = tree_of(config.root()), over = tree_of(overrides.root());
  Tree text = Tree{.is_object = true};
  if (std::optional<Tree> given = over.take("text_config"); given && given->is_object)
    text = std::move(*given);
  for (const std::string_view field : kTextFields)  // at the top level: the file is flat
    if (auto value = over.take(field)) text.at(field) = std::move(*value);

  Tree& base_text = nested ? base.at("text_config") : base;
  respell(base_text, text, std::array{Spelling{"num_local_experts", "num_experts"}});
  respell(base, over,
          std::array{Spelling{"dtype", "torch_dtype"}, Spelling{"image_token_index", "image_token_id"},
                     Spelling{"video_token_index", "video_token_id"}});
  place_rope(base_text, text);
  place_index(base_text, text);
  merge(base_text, std::move(text));
  merge(base, std::move(over));
  JsonWriter out;
  write(base, out);
  return out.take();
}

}  // namespace sparrow
