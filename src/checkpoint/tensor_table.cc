// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/tensor_table.h"

#include <algorithm>
#include <array>
#include <utility>

#include "checkpoint/mx/exclusions.h"

namespace sparrow {
namespace {

using R = TensorRole;
using D = DeviceTensor;
using P = LedgerPart;
using S = RandomSpread;
using enum TensorCut;
using enum DevicePacking;

// How a tensor may be stored.
enum class Storage : uint8_t {
  kFloat,   // in the model's type
  kF32,     // in F32, whatever the model's type
  kLinear,  // in the model's type, or quantised as the configuration says
  kBiased,  // in the model's type, with a bias of one number for each row
};
using enum Storage;

enum Extent : uint8_t {
  kNoExtent,
  kVocab,
  kHidden,
  kHeadDim,
  kQueryDim,  // of all query heads
  kKvDim,     // of all KV heads
  kExperts,
  kExpertInner,
  kSharedInner,
  kDenseInner,
  kTowerHidden,
  kTowerInner,
  kColours,
  kFrames,
  kPatchSide,
  kProjectorInner,
  kMergedHidden,
};

struct Template {
  TensorRole role;
  std::string_view name;  // behind the prefix of its group
  std::array<Extent, 5> shape;
  Storage storage;
  TensorCut cut;
  LedgerPart part;
  DevicePlace device = {};  // its format is set with the storage's
  RandomSpread spread = RandomSpread::kUnit;
};

// clang-format off
constexpr Template kEntryRows[] = {
  {R::kEmbed, "model.embed_tokens.weight", {kVocab, kHidden}, kFloat, kRows, P::kEmbeddings, {D::kEmbed}, S::kEmbedding},
};
constexpr Template kEveryLayerRows[] = {
  {R::kInputNorm,         "input_layernorm.weight",          {kHidden},            kFloat,  kWhole,   P::kRouterNorms, {D::kInputNorm},         S::kNorm},
  {R::kPostAttentionNorm, "post_attention_layernorm.weight", {kHidden},            kFloat,  kWhole,   P::kRouterNorms, {D::kPostAttentionNorm}, S::kNorm},
  {R::kQ,                 "self_attn.q_proj.weight",         {kQueryDim, kHidden}, kLinear, kRows,    P::kAttention,   {D::kQkv, kHeadGroups}},
  {R::kK,                 "self_attn.k_proj.weight",         {kKvDim, kHidden},    kLinear, kKvHeads, P::kAttention,   {D::kQkv}},
  {R::kV,                 "self_attn.v_proj.weight",         {kKvDim, kHidden},    kLinear, kKvHeads, P::kAttention,   {D::kQkv}},
  {R::kO,                 "self_attn.o_proj.weight",         {kHidden, kQueryDim}, kLinear, kColumns, P::kAttention,   {D::kO, kHeadGroups},    S::kResidual},
  {R::kQNorm,             "self_attn.q_norm.weight",         {kHeadDim},           kFloat,  kWhole,   P::kRouterNorms, {D::kQNorm},             S::kHeadNorm},
  {R::kKNorm,             "self_attn.k_norm.weight",         {kHeadDim},           kFloat,  kWhole,   P::kRouterNorms, {D::kKNorm},             S::kHeadNorm},
};
constexpr Template kSparseLayerRows[] = {
  // One index head for each KV head, and one index key for all of them.
  {R::kIndexQ,     "self_attn.index_q_proj.weight", {kKvDim, kHidden},   kLinear, kKvHeads, P::kAttention,   {D::kQkv}},
  {R::kIndexK,     "self_attn.index_k_proj.weight", {kHeadDim, kHidden}, kLinear, kWhole,   P::kAttention,   {D::kQkv}},
  {R::kIndexQNorm, "self_attn.index_q_norm.weight", {kHeadDim},          kFloat,  kWhole,   P::kRouterNorms, {D::kIndexQNorm}, S::kNorm},
  {R::kIndexKNorm, "self_attn.index_k_norm.weight", {kHeadDim},          kFloat,  kWhole,   P::kRouterNorms, {D::kIndexKNorm}, S::kNorm},
};
constexpr Template kDenseLayerRows[] = {
  {R::kGate, "gate_proj.weight", {kDenseInner, kHidden}, kLinear, kRows,    P::kDense, {D::kGateUp, kFirstEights}},
  {R::kUp,   "up_proj.weight",   {kDenseInner, kHidden}, kLinear, kRows,    P::kDense, {D::kGateUp, kSecondEights}},
  {R::kDown, "down_proj.weight", {kHidden, kDenseInner}, kLinear, kColumns, P::kDense, {D::kDown, kTiles}, S::kResidual},
};
constexpr Template kMoeLayerRows[] = {
  {R::kRouter,     "gate.weight",             {kExperts, kHidden}, kF32, kWhole, P::kRouterNorms, {D::kRouter}},
  {R::kRouterBias, "e_score_correction_bias", {kExperts},          kF32, kWhole, P::kRouterNorms, {D::kRouterBias}, S::kRouterBias},
};
constexpr Template kRoutedExpertRows[] = {
  {R::kGate, "w1.weight", {kExpertInner, kHidden}, kLinear, kRows,    P::kRoutedExperts, {D::kGateUp, kFirstEights}},
  {R::kUp,   "w3.weight", {kExpertInner, kHidden}, kLinear, kRows,    P::kRoutedExperts, {D::kGateUp, kSecondEights}},
  {R::kDown, "w2.weight", {kHidden, kExpertInner}, kLinear, kColumns, P::kRoutedExperts, {D::kDown, kTiles}, S::kResidual},
};
constexpr Template kSharedExpertRows[] = {
  {R::kGate, "gate_proj.weight", {kSharedInner, kHidden}, kLinear, kRows,    P::kSharedExperts, {D::kGateUp, kFirstEights}},
  {R::kUp,   "up_proj.weight",   {kSharedInner, kHidden}, kLinear, kRows,    P::kSharedExperts, {D::kGateUp, kSecondEights}},
  {R::kDown, "down_proj.weight", {kHidden, kSharedInner}, kLinear, kColumns, P::kSharedExperts, {D::kDown, kTiles}, S::kResidual},
};
constexpr Template kExitRows[] = {
  {R::kFinalNorm, "model.norm.weight", {kHidden},         kFloat, kWhole, P::kRouterNorms, {D::kFinalNorm}, S::kNorm},
  {R::kHead,      "lm_head.weight",    {kVocab, kHidden}, kFloat, kRows,  P::kEmbeddings,  {D::kHead},      S::kHead},
};
constexpr Template kVisionEntryRows[] = {
  {R::kVisionPatch,   "embeddings.patch_embedding.weight", {kTowerHidden, kColours, kFrames, kPatchSide, kPatchSide}, kF32,    kWhole, P::kVision},
  {R::kVisionPreNorm, "pre_layrnorm.weight",               {kTowerHidden},                                            kBiased, kWhole, P::kVision, {}, S::kVisionNorm},
};
constexpr Template kVisionLayerRows[] = {
  {R::kVisionNorm1, "layer_norm1.weight",        {kTowerHidden},               kBiased, kWhole, P::kVision, {}, S::kVisionNorm},
  {R::kVisionQ,     "self_attn.q_proj.weight",   {kTowerHidden, kTowerHidden}, kBiased, kWhole, P::kVision},
  {R::kVisionK,     "self_attn.k_proj.weight",   {kTowerHidden, kTowerHidden}, kBiased, kWhole, P::kVision},
  {R::kVisionV,     "self_attn.v_proj.weight",   {kTowerHidden, kTowerHidden}, kBiased, kWhole, P::kVision},
  {R::kVisionO,     "self_attn.out_proj.weight", {kTowerHidden, kTowerHidden}, kBiased, kWhole, P::kVision},
  {R::kVisionNorm2, "layer_norm2.weight",        {kTowerHidden},               kBiased, kWhole, P::kVision, {}, S::kVisionNorm},
  {R::kVisionUp,    "mlp.fc1.weight",            {kTowerInner, kTowerHidden},  kBiased, kWhole, P::kVision},
  {R::kVisionDown,  "mlp.fc2.weight",            {kTowerHidden, kTowerInner},  kBiased, kWhole, P::kVision},
};
constexpr Template kVisionExitRows[] = {
  {R::kProjectorUp,   "multi_modal_projector.linear_1.weight", {kProjectorInner, kTowerHidden},  kBiased, kWhole, P::kVision},
  {R::kProjectorDown, "multi_modal_projector.linear_2.weight", {kHidden, kProjectorInner},       kBiased, kWhole, P::kVision},
  {R::kMergerUp,      "patch_merge_mlp.linear_1.weight",       {kProjectorInner, kMergedHidden}, kBiased, kWhole, P::kVision},
  {R::kMergerDown,    "patch_merge_mlp.linear_2.weight",       {kHidden, kProjectorInner},       kBiased, kWhole, P::kVision},
};
// clang-format on

constexpr std::string_view kTextPrefix = "language_model.";

// Where rows repeat. {text}, {mlp}: as the scheme says; {layer}, {expert}: numbers.
struct Group {
  std::string_view prefix;
  std::span<const Template> rows;
};

constexpr Group kEntry = {"{text}", kEntryRows};
constexpr Group kEveryLayer = {"{text}model.layers.{layer}.", kEveryLayerRows};
constexpr Group kSparseLayer = {"{text}model.layers.{layer}.", kSparseLayerRows};
constexpr Group kDenseLayer = {"{text}model.layers.{layer}.{mlp}.", kDenseLayerRows};
constexpr Group kMoeLayer = {"{text}model.layers.{layer}.block_sparse_moe.", kMoeLayerRows};
constexpr Group kRoutedExpert = {"{text}model.layers.{layer}.block_sparse_moe.experts.{expert}.",
                                 kRoutedExpertRows};
constexpr Group kSharedExpert = {"{text}model.layers.{layer}.block_sparse_moe.shared_experts.",
                                 kSharedExpertRows};
constexpr Group kExit = {"{text}", kExitRows};
constexpr Group kVisionEntry = {"vision_tower.vision_model.", kVisionEntryRows};
constexpr Group kVisionLayer = {"vision_tower.vision_model.encoder.layers.{layer}.", kVisionLayerRows};
constexpr Group kVisionExit = {"", kVisionExitRows};

// Behind a quantised matrix's name: of MXFP8, of MXFP4.
constexpr std::array<std::string_view, 2> kScaleSuffixes = {"_scale_inv", "_scale"};

// Behind the prefix of a layer. Several names are in use.
constexpr std::string_view kAttentionScales = "{text}model.layers.{layer}.self_attn.";
constexpr std::array<std::string_view, 5> kKScales = {"attn.k_scale", "k_proj.k_scale", "qkv_proj.k_scale",
                                                      "k_scale", "kv_scale"};
constexpr std::array<std::string_view, 5> kVScales = {"attn.v_scale", "v_proj.v_scale", "qkv_proj.v_scale",
                                                      "v_scale", "kv_scale"};
constexpr std::array<std::string_view, 4> kQScales = {"attn.q_scale", "q_proj.q_scale", "qkv_proj.q_scale",
                                                      "q_scale"};

int64_t extent_of(Extent extent, const ModelConfig& config) {
  const VisionConfig vision = config.vision.value_or(VisionConfig{});
  switch (extent) {
    case kNoExtent:
      return 0;
    case kVocab:
      return config.vocab_size;
    case kHidden:
      return config.hidden_size;
    case kHeadDim:
      return config.head_dim;
    case kQueryDim:
      return int64_t{config.num_query_heads} * config.head_dim;
    case kKvDim:
      return int64_t{config.num_kv_heads} * config.head_dim;
    case kExperts:
      return config.num_experts;
    case kExpertInner:
      return config.expert_intermediate_size;
    case kSharedInner:
      return config.shared_intermediate_size;
    case kDenseInner:
      return config.dense_intermediate_size;
    case kTowerHidden:
      return vision.hidden_size;
    case kTowerInner:
      return vision.intermediate_size;
    case kColours:
      return vision.num_channels;
    case kFrames:
      return vision.temporal_patch_size;
    case kPatchSide:
      return vision.patch_size;
    case kProjectorInner:
      return vision.projector_hidden_size;
    case kMergedHidden:
      return int64_t{config.hidden_size} * vision.spatial_merge_size * vision.spatial_merge_size;
  }
  return 0;
}

// A prefix with its places filled in.
std::string prefix_of(std::string_view pattern, const NameScheme& names, int layer = -1, int expert = -1) {
  std::string prefix(pattern);
  const auto fill = [&](std::string_view place, std::string_view text) {
    if (const size_t at = prefix.find(place); at != std::string::npos) prefix.replace(at, place.size(), text);
  };
  fill("{text}", names.text_only ? "" : kTextPrefix);
  fill("{mlp}", names.dense_as_moe ? "block_sparse_moe" : "mlp");
  fill("{layer}", std::to_string(layer));
  fill("{expert}", std::to_string(expert));
  return prefix;
}

std::string name_of(const Group& group, TensorRole role, const NameScheme& names, int layer = -1) {
  const auto found = std::ranges::find(group.rows, role, &Template::role);
  SPARROW_CHECK(found != group.rows.end());
  return prefix_of(group.prefix, names, layer) + std::string(found->name);
}

// Makes the rows of a model, group by group.
class Table {
 public:
  explicit Table(const ModelConfig& config)
      : config_(config), excluded_(config.unquantised, kTextPrefix), in_mxfp8_(config.mxfp8, kTextPrefix) {}

  void add(const Group& group, int layer = -1, int expert = -1) {
    const std::string prefix = prefix_of(group.prefix, config_.names, layer, expert);
    for (const Template& of : group.rows) {
      TensorRow row = {.role = of.role,
                       .layer = layer,
                       .expert = expert,
                       .spec = {prefix + std::string(of.name), config_.dtype, {}},
                       .cut = of.cut,
                       .part = of.part,
                       .device = of.device,
                       .spread = of.spread};
      for (const Extent extent : of.shape)
        if (extent != kNoExtent) row.spec.shape.push_back(extent_of(extent, config_));
      if (of.storage == Storage::kF32) row.spec.dtype = DType::kF32, row.device.format = MatrixFormat::kF32;
      const MatrixFormat format = of.storage == kLinear ? format_of(row.spec.name) : MatrixFormat::kBF16;
      if (is_mx(format))
        add_mx(std::move(row), format);
      else if (of.storage == kBiased)
        add_biased(std::move(row));
      else
        rows_.push_back(std::move(row));
    }
  }

  std::vector<TensorRow> take() { return std::move(rows_); }

 private:
  // Of a linear layer; kBF16: it is not quantised.
  MatrixFormat format_of(std::string_view name) const {
    const std::string_view module = name.substr(0, name.rfind('.'));
    if (config_.quant == QuantFormat::kNone || excluded_.contains(module)) return MatrixFormat::kBF16;
    const bool is_mxfp8 = config_.quant == QuantFormat::kMxfp8 || in_mxfp8_.contains(module);
    return is_mxfp8 ? MatrixFormat::kMxfp8 : MatrixFormat::kMxfp4;
  }

  void add_mx(TensorRow values, MatrixFormat format) {
    values.format = values.device.format = format;
    TensorRow scales = values;
    values.spec.dtype = dtype_of(format);
    values.spec.shape.back() /= values_per_element(format);
    scales.piece = TensorPiece::kScales;
    scales.spec.name = scale_name(values);
    scales.spec.dtype = DType::kU8;
    scales.spec.shape.back() /= kScaleGroup;
    scales.device = {};
    rows_.push_back(std::move(values));
    rows_.push_back(std::move(scales));
  }

  void add_biased(TensorRow values) {
    constexpr std::string_view kWeight = "weight";
    TensorRow bias = values;
    bias.piece = TensorPiece::kBias;
    bias.spec.name.replace(bias.spec.name.size() - kWeight.size(), kWeight.size(), "bias");
    bias.spec.shape.resize(1);
    bias.device = {};
    bias.spread = RandomSpread::kBias;
    rows_.push_back(std::move(values));
    rows_.push_back(std::move(bias));
  }

  const ModelConfig& config_;
  const Exclusions excluded_, in_mxfp8_;
  std::vector<TensorRow> rows_;
};

}  // namespace

std::vector<TensorRow> tensor_table(const ModelConfig& config) {
  Table table(config);
  table.add(kEntry);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const auto at = static_cast<size_t>(layer);
    table.add(kEveryLayer, layer);
    if (config.layer_is_sparse[at]) table.add(kSparseLayer, layer);
    if (!config.layer_is_moe[at]) {
      table.add(kDenseLayer, layer);
      continue;
    }
    table.add(kMoeLayer, layer);
    for (int expert = 0; expert < config.num_experts; ++expert) table.add(kRoutedExpert, layer, expert);
    table.add(kSharedExpert, layer);
  }
  table.add(kExit);
  if (!config.vision) return table.take();
  table.add(kVisionEntry);
  for (int layer = 0; layer < config.vision->num_layers; ++layer) table.add(kVisionLayer, layer);
  table.add(kVisionExit);
  return table.take();
}

NameScheme detect_names(const ModelConfig& config,
                        const std::function<bool(const std::string& name)>& holds) {
  NameScheme names;
  names.text_only = !holds(name_of(kEntry, TensorRole::kEmbed, {})) &&
                    holds(name_of(kEntry, TensorRole::kEmbed, {.text_only = true}));
  const NameScheme as_moe = {.text_only = names.text_only, .dense_as_moe = true};
  for (int layer = 0; layer < config.num_layers; ++layer)
    if (!config.layer_is_moe[static_cast<size_t>(layer)] &&
        holds(name_of(kDenseLayer, TensorRole::kGate, as_moe, layer)))
      return as_moe;
  return names;
}

std::vector<std::string> kv_scale_names(TensorRole role, int layer, const NameScheme& names) {
  const std::string prefix = prefix_of(kAttentionScales, names, layer);
  std::vector<std::string> all;
  for (const std::string_view name : role == TensorRole::kK ? kKScales : kVScales)
    all.push_back(prefix + std::string(name));
  return all;
}

bool is_optional_tensor(std::string_view name) {
  if (name.find(".mtp.") != std::string_view::npos) return true;
  constexpr std::string_view kAttention = "self_attn.";
  const size_t at = name.find(kAttention);
  if (at == std::string_view::npos) return false;
  const std::string_view rest = name.substr(at + kAttention.size());
  const auto is_among = [&](const auto& names) { return std::ranges::find(names, rest) != names.end(); };
  return is_among(kKScales) || is_among(kVScales) || is_among(kQScales);
}

std::string scale_name(const TensorRow& row) {
  return row.spec.name + std::string(kScaleSuffixes[row.format == MatrixFormat::kMxfp8 ? 0 : 1]);
}

std::vector<std::string> scale_names(const TensorRow& row) {
  std::vector<std::string> all;
  for (const std::string_view suffix : kScaleSuffixes) all.push_back(row.spec.name + std::string(suffix));
  return all;
}

std::vector<std::string> unquantised_modules(QuantFormat format, int first_moe_layer, int num_layers) {
  if (format == QuantFormat::kNone) return {};
  if (format == QuantFormat::kMxfp4)
    return {"*lm_head",          "*vision_tower*",         "*multi_modal_projector*",
            "*patch_merge_mlp*", "*block_sparse_moe.gate", "*self_attn*",
            "*mlp.gate_proj",    "*mlp.up_proj",           "*mlp.down_proj"};
  std::vector<std::string> modules = {"lm_head", "model.embed_tokens", "vision_tower",
                                      "multi_modal_projector", "patch_merge_mlp"};
  for (int layer = first_moe_layer; layer < num_layers; ++layer)
    modules.push_back(prefix_of(kMoeLayer.prefix, {}, layer) + "gate");
  return modules;
}

// Attention, and the dense feed-forward in both spellings.
std::vector<std::string> mxfp8_modules() {
  return {"*self_attn*",
          "*mlp.gate_proj",
          "*mlp.up_proj",
          "*mlp.down_proj",
          "*block_sparse_moe.gate_proj",
          "*block_sparse_moe.up_proj",
          "*block_sparse_moe.down_proj"};
}

}  // namespace sparrow
