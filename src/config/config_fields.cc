// SPDX-License-Identifier: Apache-2.0
#include "config/config_fields.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace sparrow {
namespace {

constexpr int kSizeMultiple = 32;

// The first num_layers entries of a list, each mapped to 0 or 1 by `flag_of`.
template <typename F>
Result<LayerFlags> read_flags(const Json& list, int num_layers, F&& flag_of) {
  SPARROW_TRY(list.expect_array());
  if (list.size() < static_cast<size_t>(num_layers))
    return Error{Errc::kInvalidArgument, strf("{} has {} entries, but num_hidden_layers is {}", list.path(),
                                              list.size(), num_layers)};
  LayerFlags flags;
  for (int i = 0; i < num_layers; ++i)
    flags.push_back(SPARROW_TRY(flag_of(list.element(static_cast<size_t>(i)))));
  return flags;
}

Result<LayerFlags> read_names(const Json& list, int num_layers, std::string_view zero, std::string_view one) {
  return read_flags(list, num_layers, [&](const Json& entry) -> Result<uint8_t> {
    const std::string name = SPARROW_TRY(entry.as_string());
    if (name != zero && name != one)
      return entry.error(strf("must be {} or {}", json_quoted(zero), json_quoted(one)));
    return static_cast<uint8_t>(name == one);
  });
}

// Where neither spelling lists the layers, transformers' classes and the released configuration have
// different defaults.
bool is_flat_spelling(const Json& text) {
  constexpr std::array<std::string_view, 6> kFlatKeys = {"layer_types",     "mlp_layer_types",
                                                         "rope_parameters", "index_n_heads",
                                                         "index_head_dim",  "index_topk_blocks"};
  return std::any_of(kFlatKeys.begin(), kFlatKeys.end(),
                     [&](auto key) { return text.find(key).has_value(); });
}

LayerFlags all_but_first_three(int num_layers) {
  LayerFlags flags(static_cast<size_t>(num_layers), 1);
  std::fill_n(flags.begin(), std::min(num_layers, 3), uint8_t{0});
  return flags;
}

}  // namespace

Error unsupported(std::string message) {
  return {Errc::kUnsupported, std::move(message)};
}

Result<int> read_size(const Json& object, std::string_view key, int fallback, int64_t max) {
  return static_cast<int>(SPARROW_TRY(object.int_or(key, fallback, 1, max)));
}

Result<int> read_multiple(const Json& object, std::string_view key, int fallback, int64_t max) {
  const int size = SPARROW_TRY(read_size(object, key, fallback, max));
  if (const auto found = object.find(key); found && size % kSizeMultiple != 0)
    return found->error(strf("must be a multiple of {}", kSizeMultiple));
  return size;
}

Result<double> read_number(const Json& object, std::string_view key, double fallback, double min,
                           double max) {
  const double value = SPARROW_TRY(object.number_or(key, fallback));
  if (const auto found = object.find(key); found && !(value >= min && value <= max))
    return found->error(strf("must be a number from {} to {}", min, max));
  return value;
}

Result<float> read_float(const Json& object, std::string_view key, double fallback, double min, double max) {
  return static_cast<float>(SPARROW_TRY(read_number(object, key, fallback, min, max)));
}

Status require_bool(const Json& object, std::string_view key, bool wanted) {
  const bool value = SPARROW_TRY(object.bool_or(key, wanted));
  if (value != wanted)
    return unsupported(strf("{} is {}; only {} is supported", object.find(key)->path(), value, wanted));
  return Ok{};
}

Status require_string(const Json& object, std::string_view key,
                      std::initializer_list<std::string_view> wanted) {
  const auto found = object.find(key);
  if (!found) return Ok{};
  const std::string value = SPARROW_TRY(found->as_string());
  if (std::find(wanted.begin(), wanted.end(), value) != wanted.end()) return Ok{};
  std::string names;
  for (const std::string_view name : wanted) names += (names.empty() ? "" : " or ") + json_quoted(name);
  return unsupported(strf("{} is {}; only {} is supported", found->path(), found->brief(), names));
}

Status require_int(const Json& object, std::string_view key, int wanted) {
  const auto found = object.find(key);
  if (!found) return Ok{};
  const int64_t value = SPARROW_TRY(found->as_int(INT64_MIN, INT64_MAX));
  if (value == wanted) return Ok{};
  return unsupported(strf("{} is {}; only {} is supported", found->path(), value, wanted));
}

Result<LayerFlags> read_freq(const Json& list, int num_layers) {
  return read_flags(list, num_layers, [](const Json& entry) -> Result<uint8_t> {
    return static_cast<uint8_t>(SPARROW_TRY(entry.as_int(0, 1)));
  });
}

Result<LayerFlags> read_moe_layers(const Json& text, int num_layers) {
  if (const auto names = text.find("mlp_layer_types"))
    return read_names(*names, num_layers, "dense", "sparse");
  if (const auto freq = text.find("moe_layer_freq")) return read_freq(*freq, num_layers);
  if (is_flat_spelling(text)) return LayerFlags(static_cast<size_t>(num_layers), 1);
  return all_but_first_three(num_layers);
}

Result<LayerFlags> read_sparse_layers(const Json& text, const std::optional<Json>& sparse, int num_layers) {
  const LayerFlags none(static_cast<size_t>(num_layers), 0);
  if (sparse && !SPARROW_TRY(sparse->bool_or("use_sparse_attention", true))) return none;
  if (const auto names = text.find("layer_types"))
    return read_names(*names, num_layers, "full_attention", "minimax_m3_sparse");
  if (sparse)
    if (const auto freq = sparse->find("sparse_attention_freq")) return read_freq(*freq, num_layers);
  return is_flat_spelling(text) ? none : all_but_first_three(num_layers);
}

namespace {

double mscale(double factor, double weight) {
  return factor <= 1.0 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

Status read_yarn(const Json& scaling, int64_t max_positions, RopeConfig& rope) {
  rope.yarn = true;
  SPARROW_TRY(SPARROW_TRY(scaling.at("factor")).as_number());
  rope.factor = SPARROW_TRY(read_number(scaling, "factor", 1.0, 1.0, 1e6));
  rope.beta_fast = SPARROW_TRY(read_number(scaling, "beta_fast", 32.0, 1e-3, 1e6));
  rope.beta_slow = SPARROW_TRY(read_number(scaling, "beta_slow", 1.0, 1e-3, 1e6));
  if (rope.beta_fast < rope.beta_slow)
    return Error{Errc::kInvalidArgument, strf("{}.beta_fast must be at least beta_slow, got {} and {}",
                                              scaling.path(), rope.beta_fast, rope.beta_slow)};
  rope.original_max_positions =
      SPARROW_TRY(scaling.int_or("original_max_position_embeddings", max_positions, 1, INT32_MAX));
  rope.truncate = SPARROW_TRY(scaling.bool_or("truncate", true));
  const double of_all = SPARROW_TRY(read_number(scaling, "mscale_all_dim", 0.0, 0.0, 1e6));
  const double of_rotated = SPARROW_TRY(read_number(scaling, "mscale", 0.0, 0.0, 1e6));
  if (scaling.find("attention_factor"))
    rope.attention_factor = SPARROW_TRY(read_number(scaling, "attention_factor", 1.0, 1e-6, 1e6));
  else if (of_all > 0.0 && of_rotated > 0.0)
    rope.attention_factor = mscale(rope.factor, of_rotated) / mscale(rope.factor, of_all);
  return Ok{};
}

}  // namespace

Result<RopeConfig> read_rope(const Json& text, int head_dim, int64_t max_positions) {
  RopeConfig rope;
  const auto parameters = text.find("rope_parameters");
  const auto scaling = parameters ? parameters : text.find("rope_scaling");
  if (scaling) SPARROW_TRY(scaling->expect_object());
  const Json& theta_at = parameters && parameters->find("rope_theta") ? *parameters : text;
  // From 2: the ramp of yarn divides by its logarithm.
  rope.theta = SPARROW_TRY(read_number(theta_at, "rope_theta", 5e6, 2.0, 1e15));

  const auto dim = text.find("rotary_dim");
  rope.rotary_dim = dim ? static_cast<int>(SPARROW_TRY(dim->as_int(2, head_dim))) : head_dim / 2;
  if (rope.rotary_dim % 2 != 0) return dim->error("must be even");
  const Json& factor_at = parameters && parameters->find("partial_rotary_factor") ? *parameters : text;
  if (const auto factor = factor_at.find("partial_rotary_factor")) {
    const double by_factor =
        head_dim * SPARROW_TRY(read_number(factor_at, "partial_rotary_factor", 1.0, 0.0, 1.0));
    if (!dim) rope.rotary_dim = static_cast<int>(by_factor);
    if (rope.rotary_dim != by_factor || rope.rotary_dim % 2 != 0 || rope.rotary_dim == 0)
      return factor->error(dim ? strf("must agree with rotary_dim {}", rope.rotary_dim)
                               : "must leave an even number of rotated channels");
  }
  if (!scaling) return rope;
  const char* const type_key = scaling->find("rope_type") ? "rope_type" : "type";
  SPARROW_TRY(require_string(*scaling, type_key, {"default", "yarn"}));
  const std::string type = SPARROW_TRY(scaling->string_or(type_key, "default"));
  if (type == "yarn") SPARROW_TRY(read_yarn(*scaling, max_positions, rope));
  return rope;
}

}  // namespace sparrow
