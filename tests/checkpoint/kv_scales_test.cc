// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/kv_scales.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>

#include "base/files/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/random/synthetic.h"
#include "checkpoint/safetensors.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::optional<KvScales> found(const std::map<std::string, float>& scalars) {
  const auto scales =
      find_kv_scales(0, {.text_only = true}, [&](const std::string& name) -> std::optional<float> {
        const auto at = scalars.find(name);
        return at == scalars.end() ? std::nullopt : std::optional(at->second);
      });
  EXPECT_TRUE(scales.ok());
  return scales.value();
}

TEST(KvScales, GoByEveryNameThatIsInUse) {
  for (const auto& [k, v] :
       {std::pair("attn.k_scale", "attn.v_scale"), std::pair("k_proj.k_scale", "v_proj.v_scale"),
        std::pair("qkv_proj.k_scale", "qkv_proj.v_scale"), std::pair("k_scale", "v_scale")}) {
    const auto name = [](const char* end) { return strf("model.layers.0.self_attn.{}", end); };
    const auto scales = found({{name(k), 0.5f}, {name(v), 0.25f}});
    ASSERT_TRUE(scales.has_value()) << k;
    EXPECT_EQ(scales->k, 0.5f);
    EXPECT_EQ(scales->v, 0.25f);
    EXPECT_TRUE(is_optional_tensor(name(k)) && is_optional_tensor(name(v)));
  }
}

TEST(KvScales, OneAloneCountsForBoth) {
  EXPECT_EQ(found({{"model.layers.0.self_attn.k_scale", 0.5f}})->v, 0.5f);
  EXPECT_EQ(found({{"model.layers.0.self_attn.v_scale", 0.5f}})->k, 0.5f);
  EXPECT_EQ(found({{"model.layers.0.self_attn.kv_scale", 2.0f}})->v, 2.0f);
  EXPECT_FALSE(found({{"model.layers.1.self_attn.k_scale", 0.5f}}).has_value());
}

TEST(KvScales, OtherScalesAreNotTakenForThem) {
  EXPECT_FALSE(is_optional_tensor("model.layers.0.self_attn.k_proj.weight_scale_inv"));
  EXPECT_FALSE(is_optional_tensor("model.layers.0.mlp.k_scale"));
}

// A synthetic checkpoint with one more file that holds a scale for its last layer.
std::filesystem::path with_scale(const test::TempDir& dir, float value) {
  const auto model = dir.path() / "m";
  EXPECT_TRUE(write_synthetic_checkpoint({.dir = model}).ok());
  const std::string name = "language_model.model.layers.2.self_attn.v_proj.v_scale";
  auto writer = SafetensorsWriter::create(model / "scales.safetensors", {{name, DType::kF32, {1}}}).value();
  EXPECT_TRUE(writer.write(0, std::as_bytes(std::span(&value, 1))).ok());
  EXPECT_TRUE(writer.finish().ok());
  const auto index = model / "model.safetensors.index.json";
  std::string text = read_text_file(index, 1 << 24).value();
  const std::string_view kMap = "\"weight_map\": {";
  text.insert(text.find(kMap) + kMap.size(), strf("\"{}\": \"scales.safetensors\",", name));
  EXPECT_TRUE(write_text_file(index, text).ok());
  return model;
}

TEST(KvScales, AreReadFromACheckpointThatHasThem) {
  const test::TempDir dir;
  const auto checkpoint = Checkpoint::open(with_scale(dir, 0.125f));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_THAT(kv_scale_table(checkpoint->weights().layers, 2),
              ElementsAre(1, 1, 1, 1, 1, 1, 1, 1, 0.125f, 0.125f, 0.125f, 0.125f));
}

TEST(KvScales, ACheckpointWithoutAnyHasAnEmptyTable) {
  EXPECT_THAT(kv_scale_table(std::vector<LayerWeights>(3), 2), IsEmpty());
}

TEST(KvScales, AScaleThatIsNoPositiveNumberIsAnError) {
  for (const float bad : {0.0f, -1.0f, INFINITY, NAN}) {
    const test::TempDir dir;
    const auto checkpoint = Checkpoint::open(with_scale(dir, bad));
    ASSERT_FALSE(checkpoint.ok()) << bad;
    EXPECT_THAT(checkpoint.error().message, HasSubstr("layers.2.self_attn.v_proj.v_scale is"));
  }
}

}  // namespace
}  // namespace sparrow
