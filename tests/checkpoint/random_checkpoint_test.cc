// SPDX-License-Identifier: Apache-2.0
// Weights out of a generator, where a folder has none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "checkpoint/checkpoint.h"
#include "checkpoint/random/random_tensor.h"
#include "checkpoint/random/synthetic.h"
#include "checkpoint/tensor_table.h"
#include "support/m3_config.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

using testing::HasSubstr;

bool same(const Tensor& a, const Tensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape &&
         std::memcmp(a.data, b.data, static_cast<size_t>(a.numel()) * size_of(a.dtype)) == 0;
}

TEST(RandomCheckpoint, HasTheBytesOfASyntheticOneOfTheSameSeed) {
  for (const MatrixFormat format :
       {MatrixFormat::kBF16, MatrixFormat::kF32, MatrixFormat::kMxfp8, MatrixFormat::kMxfp4}) {
    const test::TempDir dir;
    ASSERT_TRUE(
        write_synthetic_checkpoint({.preset = "tiny", .seed = 5, .dir = dir.path(), .format = format}).ok());
    const auto written = Checkpoint::open(dir.path());
    const auto random = Checkpoint::random(dir.path(), 5);
    const auto other = Checkpoint::random(dir.path(), 6);
    ASSERT_TRUE(written.ok() && random.ok() && other.ok());
    EXPECT_EQ(random->weight_bytes(), written->weight_bytes());
    EXPECT_EQ(random->num_tensors(), written->num_tensors());
    const Weights &a = random->weights(), &b = written->weights(), &c = other->weights();
    EXPECT_TRUE(same(a.embed, b.embed));
    EXPECT_FALSE(same(a.embed, c.embed));
    ASSERT_EQ(a.layers.size(), b.layers.size());
    for (size_t i = 0; i < a.layers.size(); ++i) {
      EXPECT_TRUE(same(a.layers[i].q.values, b.layers[i].q.values));
      EXPECT_TRUE(same(a.layers[i].mlp.down.values, b.layers[i].mlp.down.values));
      for (size_t e = 0; e < a.layers[i].experts.size(); ++e) {
        EXPECT_TRUE(same(a.layers[i].experts[e].up.values, b.layers[i].experts[e].up.values));
        const Tensor &scales = a.layers[i].experts[e].up.scales,
                     &written_scales = b.layers[i].experts[e].up.scales;
        EXPECT_TRUE(!is_mx(format) || same(scales, written_scales));
      }
    }
  }
}

TEST(RandomCheckpoint, NeedsNothingButTheConfiguration) {
  const test::TempDir dir;
  std::ofstream(dir.path() / "config.json") << synthetic_config("tiny", MatrixFormat::kBF16)->config_json;
  EXPECT_FALSE(Checkpoint::open(dir.path()).ok());
  auto random = Checkpoint::random(dir.path(), 0);
  ASSERT_TRUE(random.ok()) << random.error().message;
  const Checkpoint moved = std::move(random).value();
  EXPECT_EQ(moved.weights().layers.size(), 3u);
  EXPECT_EQ(Checkpoint::without_weights(dir.path())->weights().layers.size(), 0u);
  EXPECT_EQ(Checkpoint::without_weights(dir.path())->config().num_layers, 3);
}

TEST(RandomCheckpoint, TensorsMadeInPiecesAreThoseMadeWhole) {
  const test::TempDir dir;
  std::ofstream(dir.path() / "config.json") << synthetic_config("tiny", MatrixFormat::kBF16)->config_json;
  constexpr int64_t kVocab = 16500;  // two pieces of a million elements, and a third that is short
  const auto random = Checkpoint::random(
      dir.path(), 9, {.overrides = strf("{{\"text_config\": {{\"vocab_size\": {}}}}}", kVocab)});
  ASSERT_TRUE(random.ok()) << random.error().message;
  const TensorRow embed = tensor_table(random->config()).front();
  const TensorSpec& spec = embed.spec;
  std::vector<BFloat16> whole(static_cast<size_t>(spec.numel()));
  RandomTensor(embed, random->config(), 9).fill(0, spec.numel(), reinterpret_cast<std::byte*>(whole.data()));
  EXPECT_EQ(std::memcmp(random->weights().embed.data, whole.data(), spec.bytes()), 0);
}

// Whoever kept a random model's answers must find them again: every element of every tensor, text and vision.
TEST(RandomCheckpoint, TheSameSeedGivesTheBytesItAlwaysGave) {
  const auto hash_of = [](MatrixFormat format) {
    const SyntheticConfig texts = synthetic_config("tiny", format).value();
    const ModelConfig config = parse_config(texts.config_json, texts.generation_config_json).value();
    uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
    for (const TensorRow& row : tensor_table(config)) {
      std::vector<std::byte> bytes(row.spec.bytes());
      RandomTensor(row, config, /*seed=*/3).fill(0, row.spec.numel(), bytes.data());
      for (const std::byte b : bytes) hash = (hash ^ static_cast<uint64_t>(b)) * 0x100000001b3u;
    }
    return hash;
  };
  EXPECT_EQ(hash_of(MatrixFormat::kBF16), 0x1772282174f41cebu);
  EXPECT_EQ(hash_of(MatrixFormat::kF32), 0x47629c1889b87a7cu);
  EXPECT_EQ(hash_of(MatrixFormat::kMxfp8), 0x76a70c4290a413b4u);
  EXPECT_EQ(hash_of(MatrixFormat::kMxfp4), 0xd09890002ca4ac05u);
}

TEST(RandomCheckpoint, ReportsProgressUpToTheEnd) {
  const test::TempDir dir;
  std::ofstream(dir.path() / "config.json") << synthetic_config("tiny", MatrixFormat::kBF16)->config_json;
  uint64_t done = 0, total = 0;
  const auto random =
      Checkpoint::random(dir.path(), 0, {.progress = [&](uint64_t d, uint64_t t) { done = d, total = t; }});
  ASSERT_TRUE(random.ok());
  EXPECT_EQ(done, total);
  EXPECT_EQ(total, random->weight_bytes());
}

TEST(RandomCheckpoint, ThatMemoryCannotHoldIsRefusedWithTheSizes) {
  const test::TempDir dir;
  std::ofstream(dir.path() / "config.json") << test::m3_config_json();
  const auto random =
      Checkpoint::random(dir.path(), 0, {.overrides = R"({"text_config": {"num_local_experts": 1024}})"});
  ASSERT_FALSE(random.ok());
  EXPECT_THAT(random.error().message, HasSubstr("GiB and this machine has"));
}

}  // namespace
}  // namespace sparrow
