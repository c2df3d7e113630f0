// SPDX-License-Identifier: Apache-2.0
// The table against the published sizes of M3, and against checkpoints that others wrote.
#include "checkpoint/tensor_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "checkpoint/weights.h"
#include "support/m3_config.h"

namespace sparrow {
namespace {

using ::testing::UnorderedElementsAre;

ModelConfig m3(bool mxfp8 = false) {
  return parse_config(mxfp8 ? test::m3_mxfp8_config_json() : test::m3_config_json(), "").value();
}

struct Totals {
  size_t names = 0;
  int64_t elements = 0, bytes = 0;
};

Totals totals_of(const ModelConfig& config) {
  Totals totals;
  std::set<std::string> names;
  for (const TensorRow& row : tensor_table(config)) {
    names.insert(row.spec.name);
    totals.elements += row.spec.numel();
    totals.bytes += static_cast<int64_t>(row.spec.bytes());
  }
  totals.names = names.size();
  return totals;
}

// The published sizes are given in GiB with two decimals.
double gib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

TEST(TensorTable, TheReleasedCheckpointHasItsPublishedTensorsAndParameters) {
  const Totals totals = totals_of(m3());
  EXPECT_EQ(totals.names, 23416u);
  EXPECT_EQ(totals.elements, 427'040'140'160);
  EXPECT_NEAR(gib(totals.bytes), 795.51, 0.005);
}

TEST(TensorTable, TheQuantisedCheckpointHasItsPublishedTensorsAndElements) {
  const Totals totals = totals_of(m3(true));
  EXPECT_EQ(totals.names, 45838u);
  EXPECT_EQ(totals.elements, 440'279'845'760);
  EXPECT_NEAR(gib(totals.bytes), 413.27, 0.005);
}

TEST(TensorTable, RoleLayerExpertAndPieceNameARow) {
  std::set<std::tuple<TensorRole, TensorPiece, int, int>> seen;
  for (const TensorRow& row : tensor_table(m3(true)))
    EXPECT_TRUE(seen.emplace(row.role, row.piece, row.layer, row.expert).second) << row.spec.name;
}

// Scales come with their values, share their cut and their line of the ledger, and lie on no GPU.
TEST(TensorTable, ScalesBelongToTheValuesBeforeThem) {
  const std::vector<TensorRow> rows = tensor_table(m3(true));
  int found = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].piece != TensorPiece::kScales) continue;
    const TensorRow &scales = rows[i], &values = rows[i - 1];
    ++found;
    ASSERT_EQ(scales.spec.name, values.spec.name + "_scale_inv");
    ASSERT_EQ(values.spec.dtype, DType::kF8E4M3);
    ASSERT_EQ(scales.spec.shape[1] * 32, values.spec.shape[1]);
    ASSERT_TRUE(scales.role == values.role && scales.layer == values.layer &&
                scales.expert == values.expert && scales.cut == values.cut && scales.part == values.part);
    ASSERT_EQ(scales.device.tensor, DeviceTensor::kNone);
    ASSERT_EQ(values.device.format, MatrixFormat::kMxfp8);
  }
  EXPECT_EQ(found, 45838 - 23416);
}

using Shapes = std::map<std::string, std::vector<int64_t>>;

Shapes shapes_of(ModelConfig config, const NameScheme& names) {
  Shapes shapes;
  config.names = names;
  for (const TensorRow& row : tensor_table(config)) shapes[row.spec.name] = row.spec.shape;
  return shapes;
}

struct Golden {
  ModelConfig config;
  Shapes shapes;
};

// What transformers wrote, from the headers of its files.
Golden read_golden(const std::string& name) {
  const std::filesystem::path dir = std::filesystem::path(SPARROW_GOLDEN_DIR) / name;
  Golden golden{load_config(dir).value(), {}};
  for (const auto& file : std::filesystem::directory_iterator(dir)) {
    if (file.path().extension() != ".safetensors") continue;
    const SafetensorsFile shard = SafetensorsFile::open(file.path()).value();
    for (const auto& [tensor, entry] : shard.header().entries) golden.shapes[tensor] = entry.shape;
  }
  return golden;
}

// The same tensors under another name.
Shapes renamed(const Shapes& shapes, std::string_view from, std::string_view to) {
  Shapes out;
  for (const auto& [old_name, shape] : shapes) {
    std::string name = old_name;
    if (const size_t at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
    out[name] = shape;
  }
  return out;
}

class GoldenCheckpoint : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenCheckpoint, HoldsTheRowsOfTheTableInEverySpelling) {
  const Golden golden = read_golden(GetParam());
  ASSERT_FALSE(golden.shapes.empty());
  Shapes expected = golden.shapes;
  EXPECT_EQ(shapes_of(golden.config, {.dense_as_moe = true}), expected);
  EXPECT_EQ(shapes_of(golden.config, {.text_only = true, .dense_as_moe = true}),
            renamed(expected, "language_model.", ""));
  for (const char* module : {"gate_proj", "up_proj", "down_proj"})
    expected = renamed(expected, "block_sparse_moe." + std::string(module), "mlp." + std::string(module));
  EXPECT_EQ(shapes_of(golden.config, {}), expected);
  EXPECT_EQ(shapes_of(golden.config, {.text_only = true}), renamed(expected, "language_model.", ""));
}

TEST_P(GoldenCheckpoint, ShowsItsSpelling) {
  const Golden golden = read_golden(GetParam());
  for (const bool text_only : {false, true})
    for (const bool dense_as_moe : {false, true}) {
      const NameScheme names = {.text_only = text_only, .dense_as_moe = dense_as_moe};
      const Shapes shapes = shapes_of(golden.config, names);
      EXPECT_EQ(detect_names(golden.config, [&](const std::string& name) { return shapes.contains(name); }),
                names);
    }
  // Nothing at all is taken for the released spelling, whose tensors the census then misses.
  EXPECT_EQ(detect_names(golden.config, [](const std::string&) { return false; }), NameScheme{});
}

INSTANTIATE_TEST_SUITE_P(TensorTable, GoldenCheckpoint, ::testing::Values("bf16", "f32", "yarn"),
                         [](const auto& info) { return std::string(info.param); });

// Every row of the text model has a view of its own among the weights; vision has none.
TEST(Weights, EveryTextTensorHasAViewOfItsOwn) {
  const ModelConfig config = m3(true);
  Weights weights;
  weights.layers.resize(static_cast<size_t>(config.num_layers));
  for (LayerWeights& layer : weights.layers) layer.experts.resize(static_cast<size_t>(config.num_experts));
  std::set<const Tensor*> views;
  for (const TensorRow& row : tensor_table(config)) {
    const Tensor* const view = find_tensor(weights, row.role, row.piece, row.layer, row.expert);
    if (row.part == LedgerPart::kVision)
      ASSERT_EQ(view, nullptr) << row.spec.name;
    else
      ASSERT_TRUE(view != nullptr && views.insert(view).second) << row.spec.name;
  }
}

TEST(TensorTable, ModulesThatStayAsTheyAreAreThoseOfTheReleasedConfiguration) {
  EXPECT_THAT(unquantised_modules(QuantFormat::kMxfp8, 2, 4),
              UnorderedElementsAre("lm_head", "model.embed_tokens", "vision_tower", "multi_modal_projector",
                                   "patch_merge_mlp", "language_model.model.layers.2.block_sparse_moe.gate",
                                   "language_model.model.layers.3.block_sparse_moe.gate"));
}

}  // namespace
}  // namespace sparrow
