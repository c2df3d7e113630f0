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
#include "support/checkpoint/folder_files.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

using test::files_of;
using test::TempDir;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::map<std::string, std::string> generated(uint64_t seed) {
  const TempDir dir;
  const Status status =
      write_synthetic_checkpoint({.preset = "tiny", .seed = seed, .dir = dir.path() / "model"});
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
  for (const MatrixFormat format :
       {MatrixFormat::kBF16, MatrixFormat::kF32, MatrixFormat::kMxfp8, MatrixFormat::kMxfp4}) {
    const TempDir dir;
    ASSERT_TRUE(
        write_synthetic_checkpoint({.preset = "tiny", .seed = 3, .dir = dir.path(), .format = format}).ok());
    const auto checkpoint = Checkpoint::open(dir.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    const LayerWeights& layer = checkpoint->weights().layers[1];
    EXPECT_EQ(layer.experts[0].up.values.dtype, dtype_of(format));
    EXPECT_EQ(layer.q.values.dtype, format == MatrixFormat::kMxfp4 ? DType::kBF16 : dtype_of(format));
    EXPECT_EQ(checkpoint->config().dtype, format == MatrixFormat::kF32 ? DType::kF32 : DType::kBF16);
  }
}

TEST(Synthetic, EveryPresetDescribesAModelOfTheSizeItClaims) {
  const std::map<std::string_view, std::pair<int64_t, int64_t>> millions = {
      {"tiny", {1, 2}}, {"small", {280, 320}}, {"m3-layer", {10'000, 11'000}}, {"m3", {427'040, 427'041}}};
  for (const SyntheticPreset& preset : synthetic_presets()) {
    const auto texts = synthetic_config(preset.name, MatrixFormat::kBF16);
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

TEST(Synthetic, ExpertsAndAllElseCanHaveTwoFormats) {
  const TempDir dir;
  ASSERT_TRUE(write_synthetic_checkpoint({.preset = "tiny-mxfp4-mxfp8", .seed = 3, .dir = dir.path()}).ok());
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const LayerWeights& layer = checkpoint->weights().layers[1];
  EXPECT_EQ(layer.experts[0].up.format(), MatrixFormat::kMxfp4);
  EXPECT_EQ(layer.q.format(), MatrixFormat::kMxfp8);
}

TEST(Synthetic, QuantisedWeightsHaveTheSameSpread) {
  for (const MatrixFormat format : {MatrixFormat::kMxfp8, MatrixFormat::kMxfp4}) {
    const TempDir dir;
    ASSERT_TRUE(
        write_synthetic_checkpoint({.preset = "tiny", .seed = 3, .dir = dir.path(), .format = format}).ok());
    const auto checkpoint = Checkpoint::open(dir.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    double squares = 0, count = 0;
    for (const auto& expert : checkpoint->weights().layers[1].experts) {
      const ops::Weight& up = expert.up;
      ASSERT_EQ(up.format(), format);
      const auto* const bytes = static_cast<const uint8_t*>(up.values.data);
      for (int64_t i = 0; i < up.out() * up.in(); ++i) {
        const float code = format == MatrixFormat::kMxfp8 ? e4m3_to_float(bytes[i])
                                                          : e2m1_to_float(bytes[i / 2] >> (i % 2 * 4) & 15);
        const float value = code * e8m0_to_float(up.scales.as<uint8_t>()[i / 32]);
        ASSERT_TRUE(std::isfinite(value));
        squares += double{value} * value;
        count += 1;
      }
    }
    // Half of the groups have half the scale.
    const double expected = std::sqrt((1.0 + 0.25) / 2.0) / std::sqrt(128.0);
    const double near = format == MatrixFormat::kMxfp8 ? 0.05 : 0.1;  // of 15 numbers they can have
    EXPECT_NEAR(std::sqrt(squares / count), expected, near * expected) << name_of(format);
  }
}

TEST(Synthetic, AnExistingCheckpointIsNeverOverwritten) {
  const TempDir dir;
  ASSERT_TRUE(write_text_file(dir.path() / "config.json", "mine").ok());
  const Status status = write_synthetic_checkpoint({.preset = "tiny", .seed = 1, .dir = dir.path()});
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr((dir.path() / "config.json").string()));
  EXPECT_EQ(files_of(dir.path()).size(), 1u);
}

TEST(Synthetic, AfterAnErrorOnlyWhatWasThereBeforeIsLeft) {
  const TempDir dir;
  const auto error_of = [](const fs::path& to) {
    return write_synthetic_checkpoint(
               {.dir = to,
                .write_beside = [&](const ModelConfig&, CreatedFiles& files) -> Status {
                  SPARROW_TRY(write_text_file(SPARROW_TRY(files.add("beside")), "text"));
                  return Error{Errc::kIo, "the disk is full"};
                }})
        .error()
        .message;
  };
  ASSERT_TRUE(write_text_file(dir.path() / "mine", "text").ok());
  EXPECT_EQ(error_of(dir.path()), "the disk is full");
  EXPECT_EQ(error_of(dir.path() / "o/p/q"), "the disk is full");
  EXPECT_FALSE(fs::exists(dir.path() / "o"));
  EXPECT_EQ(files_of(dir.path()), (std::map<std::string, std::string>{{"mine", "text"}}));
}

TEST(Synthetic, WrongOptionsAreErrorsThatNameThem) {
  const TempDir dir;
  EXPECT_THAT(write_synthetic_checkpoint({.preset = "huge", .seed = 1, .dir = dir.path()}).error().message,
              ::testing::AllOf(HasSubstr("\"huge\""), HasSubstr("tiny, small, m3-layer")));
  ASSERT_TRUE(write_text_file(dir.path() / "file", "x").ok());
  EXPECT_THAT(write_synthetic_checkpoint({.preset = "tiny", .seed = 1, .dir = dir.path() / "file" / "m"})
                  .error()
                  .message,
              HasSubstr("file/m"));
}

}  // namespace
}  // namespace sparrow
