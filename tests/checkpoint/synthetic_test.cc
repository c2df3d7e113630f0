// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/random/synthetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "base/files/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/tensor_table.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

using test::TempDir;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::map<std::string, std::string> files_of(const fs::path& dir) {
  std::map<std::string, std::string> files;
  for (const auto& item : fs::directory_iterator(dir))
    files[item.path().filename()] = read_text_file(item.path(), 1 << 24).value();
  return files;
}

std::map<std::string, std::string> generated(uint64_t seed, DType dtype = DType::kBF16) {
  const TempDir dir;
  const Status status = write_synthetic_checkpoint(
      {.preset = "tiny", .seed = seed, .dir = dir.path() / "model", .dtype = dtype});
  EXPECT_TRUE(status.ok()) << status.error().message;
  return files_of(dir.path() / "model");
}

struct Moments {
  double mean = 0, std = 0;
};

Moments moments(const Tensor& tensor) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    const double x = tensor.dtype == DType::kF32 ? tensor.as<float>()[i] : to_float(tensor.as<BFloat16>()[i]);
    sum += x;
    squares += x * x;
  }
  const auto n = static_cast<double>(tensor.numel());
  return {sum / n, std::sqrt(squares / n - sum / n * (sum / n))};
}

TEST(Synthetic, TheSameSeedGivesTheSameBytesAndAnotherSeedDoesNot) {
  const auto first = generated(1), again = generated(1), other = generated(2);
  EXPECT_EQ(first, again);
  EXPECT_EQ(first.at("config.json"), other.at("config.json"));
  EXPECT_NE(first.at("model-00001-of-00002.safetensors"), other.at("model-00001-of-00002.safetensors"));
}

TEST(Synthetic, FoldersHoldWhatAReleaseHolds) {
  const auto files = generated(1);
  for (const char* name : {"config.json", "generation_config.json", "model.safetensors.index.json",
                           "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"})
    EXPECT_TRUE(files.contains(name)) << name;
}

TEST(Synthetic, EveryTypeOpensAsACheckpoint) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF8E4M3}) {
    const TempDir dir;
    ASSERT_TRUE(
        write_synthetic_checkpoint({.preset = "tiny", .seed = 3, .dir = dir.path(), .dtype = dtype}).ok());
    const auto checkpoint = Checkpoint::open(dir.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->weights().layers[1].q.values.dtype, dtype);
    EXPECT_EQ(checkpoint->config().dtype, dtype == DType::kF32 ? DType::kF32 : DType::kBF16);
  }
}

TEST(Synthetic, EveryPresetDescribesAModelOfTheSizeItClaims) {
  const std::map<std::string_view, std::pair<int64_t, int64_t>> millions = {
      {"tiny", {1, 2}}, {"small", {280, 320}}, {"m3-layer", {10'000, 11'000}}, {"m3", {427'040, 427'041}}};
  for (const SyntheticPreset& preset : synthetic_presets()) {
    const auto texts = synthetic_config(preset.name, DType::kBF16);
    ASSERT_TRUE(texts.ok());
    const auto config = parse_config(texts->config_json, texts->generation_config_json);
    ASSERT_TRUE(config.ok()) << config.error().message;
    int64_t parameters = 0;
    for (const TensorRow& row : tensor_table(config.value())) parameters += row.spec.numel();
    EXPECT_GE(parameters, millions.at(preset.name).first * 1'000'000) << preset.name;
    EXPECT_LE(parameters, millions.at(preset.name).second * 1'000'000) << preset.name;
    EXPECT_EQ(config->layer_is_sparse[0], 0);
    EXPECT_EQ(config->layer_is_sparse.back(), 1);
    EXPECT_EQ(config->temperature, 1.0);
  }
}

TEST(Synthetic, WeightsAreSpreadSoThatActivationsKeepTheirSize) {
  const TempDir dir;
  ASSERT_TRUE(write_synthetic_checkpoint({.preset = "tiny", .seed = 3, .dir = dir.path()}).ok());
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  const LayerWeights& layer = checkpoint->weights().layers[1];
  EXPECT_NEAR(moments(layer.q.values).std, 1 / std::sqrt(128.0), 0.002);
  EXPECT_NEAR(moments(layer.o.values).std, 1 / std::sqrt(1024.0 * 6), 0.002);
  EXPECT_NEAR(moments(checkpoint->weights().head.values).std, 2.5 / std::sqrt(128.0), 0.005);
  EXPECT_NEAR(moments(checkpoint->weights().embed).std, 0.5, 0.01);
  EXPECT_NEAR(moments(layer.q.values).mean, 0.0, 0.001);
  EXPECT_LT(moments(layer.input_norm).std, 0.1);
  EXPECT_NEAR(moments(layer.input_norm).mean, 0.0, 0.03);
  EXPECT_NEAR(moments(layer.q_norm).mean, 0.5, 0.05);
}

TEST(Synthetic, QuantisedWeightsHaveTheSameSpread) {
  const TempDir dir;
  ASSERT_TRUE(
      write_synthetic_checkpoint({.preset = "tiny", .seed = 3, .dir = dir.path(), .dtype = DType::kF8E4M3})
          .ok());
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok());
  const ops::Weight& q = checkpoint->weights().layers[1].q;
  const auto* codes = static_cast<const uint8_t*>(q.values.data);
  double squares = 0;
  for (int64_t i = 0; i < q.values.numel(); ++i) {
    const float scale = e8m0_to_float(q.scales.as<uint8_t>()[i / 32]);
    const float value = e4m3_to_float(codes[i]) * scale;
    ASSERT_TRUE(std::isfinite(value));
    squares += double{value} * value;
  }
  // Half of the groups have half the scale.
  const double expected = std::sqrt((1.0 + 0.25) / 2.0) / std::sqrt(128.0);
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(q.values.numel())), expected, 0.05 * expected);
}

TEST(Synthetic, AnExistingCheckpointIsNeverOverwritten) {
  const TempDir dir;
  ASSERT_TRUE(write_text_file(dir.path() / "config.json", "mine").ok());
  const Status status = write_synthetic_checkpoint({.preset = "tiny", .seed = 1, .dir = dir.path()});
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr((dir.path() / "config.json").string()));
  EXPECT_EQ(files_of(dir.path()).size(), 1u);
}

TEST(Synthetic, WrongOptionsAreErrorsThatNameThem) {
  const TempDir dir;
  EXPECT_THAT(write_synthetic_checkpoint({.preset = "huge", .seed = 1, .dir = dir.path()}).error().message,
              ::testing::AllOf(HasSubstr("\"huge\""), HasSubstr("tiny, small, m3-layer")));
  EXPECT_THAT(
      write_synthetic_checkpoint({.preset = "tiny", .seed = 1, .dir = dir.path(), .dtype = DType::kI32})
          .error()
          .message,
      HasSubstr("I32"));
  ASSERT_TRUE(write_text_file(dir.path() / "file", "x").ok());
  EXPECT_THAT(write_synthetic_checkpoint({.preset = "tiny", .seed = 1, .dir = dir.path() / "file" / "m"})
                  .error()
                  .message,
              HasSubstr("file/m"));
}

}  // namespace
}  // namespace sparrow
