// SPDX-License-Identifier: Apache-2.0
// The vision tower against what transformers computed, and against itself in other company.
#include "model/vision/tower.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/tensor_table.h"
#include "model/vision/segments.h"
#include "support/golden.h"
#include "support/variant.h"
#include "support/vision/pictures.h"

namespace sparrow::test {
namespace {

class VisionTowerTest : public ::testing::Test {
 protected:
  VisionTowerTest()
      : checkpoint_(Checkpoint::open(vision_dir() / "model").value()),
        images_(vision_dir() / "images.golden.safetensors"),
        features_(vision_dir() / "features.golden.safetensors"),
        pool_(test_threads()),
        exec_{pool_, scratch_, test_isa()} {}

  const ModelConfig& config() const { return checkpoint_.config(); }
  const VisionConfig& vision() const { return *config().vision; }

  std::vector<Picture> pictures() const { return golden_pictures(vision()); }

  // The features of some pictures in one call, as f32.
  std::vector<float> encode(const ModelConfig& config, const VisionWeights& weights,
                            std::span<const Picture* const> pictures, const TowerWatch& watch = {}) {
    std::vector<PatchGrid> grids;
    std::vector<float> rows;
    for (const Picture* picture : pictures) {
      grids.push_back(picture->grid);
      rows.insert(rows.end(), picture->rows.begin(), picture->rows.end());
    }
    int64_t tokens = 0;
    for (const PatchGrid& grid : grids) tokens += tokens_of(vision(), grid);
    const int64_t numbers = patch_numbers(vision()), hidden = config.hidden_size;
    std::vector<std::byte> memory(static_cast<size_t>(tokens * hidden) * size_of(config.dtype));
    const Tensor features(memory.data(), config.dtype, {tokens, hidden});
    const Tensor patches(rows.data(), DType::kF32, {static_cast<int64_t>(rows.size()) / numbers, numbers});
    VisionTower(config, weights).encode(exec_, patches, grids, features, watch);
    return as_floats(features);
  }
  std::vector<float> encode(const Picture& picture, const TowerWatch& watch = {}) {
    return encode(config(), *checkpoint_.weights().vision, std::array{&picture}, watch);
  }

  static std::vector<float> as_floats(const Tensor& rows) {
    std::vector<float> values;
    for (int64_t r = 0; r < rows.rows(); ++r)
      for (int64_t c = 0; c < rows.cols(); ++c)
        values.push_back(rows.dtype == DType::kF32 ? rows.row<float>(r)[c]
                                                   : to_float(rows.row<BFloat16>(r)[c]));
    return values;
  }

  static std::vector<float> some_rows(const std::vector<float>& all, std::span<const int32_t> rows,
                                      size_t columns) {
    std::vector<float> some;
    for (const int32_t row : rows)
      some.insert(some.end(), all.begin() + static_cast<int64_t>(row * columns),
                  all.begin() + static_cast<int64_t>((row + 1) * columns));
    return some;
  }

  Checkpoint checkpoint_;
  const TensorFile images_, features_;
  ThreadPool pool_;
  Scratch scratch_;
  Exec exec_;
};

TEST_F(VisionTowerTest, TurnsPatchesAsTheTableSays) {
  const PatchGrid grid{3, 4, 6};
  const std::vector<int32_t> positions = features_.ints("rope.positions");
  std::vector<int32_t> own;
  for (const PatchPlace& place : patch_places(vision(), grid))
    own.insert(own.end(), {place.t, place.h, place.w});
  EXPECT_EQ(own, positions);
  const int64_t rows = grid.patches(), angles = rotary_angles(vision());
  ASSERT_EQ(angles, 39);
  std::vector<float> cos(static_cast<size_t>(rows * angles)), sin(cos.size());
  patch_rotary(exec_, vision(), std::array{grid},
               {{cos.data(), DType::kF32, {rows, angles}}, {sin.data(), DType::kF32, {rows, angles}}});
  const std::vector<float> want_cos = features_.floats("rope.cos"), want_sin = features_.floats("rope.sin");
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < 2 * angles; ++i) {  // the second half says the same again
      const auto own_at = static_cast<size_t>(r * angles + i % angles),
                 at = static_cast<size_t>(r * 2 * angles + i);
      ASSERT_NEAR(cos[own_at], want_cos[at], 1e-6f) << r << " " << i;
      ASSERT_NEAR(sin[own_at], want_sin[at], 1e-6f) << r << " " << i;
    }
}

TEST_F(VisionTowerTest, EveryStageIsTransformers) {
  for (const Picture& picture : pictures()) {
    if (picture.name != "alpha") continue;
    std::vector<std::pair<std::string, std::vector<float>>> stages;
    encode(picture, [&](TowerStage stage, int layer, const Tensor& rows) {
      const std::array names = {std::string("embedded"), std::string("normed"), strf("layer.{}", layer),
                                std::string("projected")};
      stages.emplace_back(names[static_cast<size_t>(stage)], as_floats(rows));
    });
    ASSERT_EQ(stages.size(), 5u);
    for (const auto& [name, rows] : stages)
      EXPECT_LE(relative_error(rows, features_.floats("alpha.stage." + name)), 1e-5) << name;
  }
}

TEST_F(VisionTowerTest, TowerAndFeaturesAreTransformers) {
  int compared = 0;
  for (const Picture& picture : pictures()) {
    std::vector<float> tower;
    const std::vector<float> features = encode(picture, [&](TowerStage stage, int layer, const Tensor& rows) {
      if (stage == TowerStage::kLayer && layer == vision().num_layers - 1) tower = as_floats(rows);
    });
    const std::vector<int32_t> patches = images_.ints(picture.name + ".patch_index");
    const auto numbers = static_cast<size_t>(patch_numbers(vision()));
    const std::vector<float> pixels = images_.floats(picture.name + ".pixel_values");
    const std::vector<float> own_pixels = some_rows(picture.rows, patches, numbers);
    ASSERT_LE(relative_error(own_pixels, pixels), 1e-6) << picture.name;
    EXPECT_LE(relative_error(some_rows(tower, patches, static_cast<size_t>(vision().hidden_size)),
                             features_.floats(picture.name + ".tower")),
              1e-5)
        << picture.name;
    EXPECT_LE(relative_error(features, features_.floats(picture.name + ".features")), 1e-5) << picture.name;
    ++compared;
  }
  EXPECT_GE(compared, 20);
}

TEST_F(VisionTowerTest, AnImagesBitsDependOnItAlone) {
  const std::vector<Picture> all = pictures();
  std::vector<const Picture*> order;
  for (const Picture& picture : all) order.push_back(&picture);
  std::vector<std::vector<float>> alone;
  for (const Picture& picture : all) alone.push_back(encode(picture));
  for (const bool reversed : {false, true}) {
    if (reversed) std::ranges::reverse(order);
    const std::vector<float> together = encode(config(), *checkpoint_.weights().vision, order);
    size_t at = 0;
    for (const Picture* picture : order) {
      const std::vector<float>& own = alone[static_cast<size_t>(picture - all.data())];
      ASSERT_EQ(0, std::memcmp(own.data(), together.data() + at, own.size() * sizeof(float)))
          << picture->name;
      at += own.size();
    }
    EXPECT_EQ(at, together.size());
  }
}

// A clip is its runs of temporal patches, one after the other.
TEST_F(VisionTowerTest, ALongClipIsItsSegments) {
  const std::vector<Picture> all = pictures();
  const Picture& frame = all.front();
  const int most = vision().segment_max_frames;
  const auto repeated = [&](int t) {
    Picture clip{.name = "clip", .grid = {t, frame.grid.h, frame.grid.w}};
    // Rows that differ from patch to patch of time, so that an order of them that is wrong shows.
    for (int i = 0; i < t; ++i)
      for (const float value : frame.rows)
        clip.rows.push_back(value * (1.0f + 0.1f * static_cast<float>(i % most)));
    return clip;
  };
  const std::vector<float> whole = encode(repeated(2 * most + 1));
  const std::vector<float> run = encode(repeated(most)), last = encode(repeated(1));
  std::vector<float> want = run;
  want.insert(want.end(), run.begin(), run.end());
  want.insert(want.end(), last.begin(), last.end());
  EXPECT_EQ(whole, want);
}

// transformers in bf16 is up to 2.1e-2 off its own f32.
TEST_F(VisionTowerTest, Bf16IsNearerToF32ThanTransformers) {
  ModelConfig config = this->config();
  config.dtype = DType::kBF16;
  Weights rounded = checkpoint_.weights();
  std::vector<std::unique_ptr<BFloat16[]>> memory;
  for (const TensorRow& row : tensor_table(this->config())) {
    if (row.part != LedgerPart::kVision || row.piece == TensorPiece::kBias ||
        row.role == TensorRole::kVisionPatch)
      continue;
    Tensor& view = *find_tensor(rounded, row.role, row.piece, row.layer, row.expert);
    memory.push_back(std::make_unique<BFloat16[]>(static_cast<size_t>(view.numel())));
    for (int64_t i = 0; i < view.numel(); ++i)
      memory.back()[static_cast<size_t>(i)] = to_bf16(view.as<float>()[i]);
    view.data = memory.back().get();
    view.dtype = DType::kBF16;
  }
  double worst = 0;
  for (const Picture& picture : pictures()) {
    const std::vector<float> features = encode(config, *rounded.vision, std::array{&picture});
    worst = std::max(worst, relative_error(features, features_.floats(picture.name + ".features")));
  }
  EXPECT_LT(worst, 2.1e-2);
  RecordProperty("worst", std::to_string(worst));
}

TEST_F(VisionTowerTest, TakesNoMoreScratchThanItSays) {
  // As many images as go through together, and a few more.
  const std::vector<Picture> all = pictures();
  const Picture& alpha = *std::ranges::find(all, "alpha", &Picture::name);
  const std::vector<const Picture*> many(60, &alpha);
  encode(config(), *checkpoint_.weights().vision, many);
  const int64_t most = VisionTower::scratch_bytes(config(), exec_.isa, pool_.size(), alpha.grid.patches());
  EXPECT_LE(static_cast<int64_t>(scratch_.capacity_bytes()), most);
  EXPECT_GE(static_cast<int64_t>(scratch_.capacity_bytes()), most / 2);
}

TEST(VisionWeights, AreLeftAloneWhereNobodyWantsThem) {
  const Checkpoint text = Checkpoint::open(vision_dir() / "model", {.vision = false}).value();
  const Checkpoint whole = Checkpoint::open(vision_dir() / "model").value();
  EXPECT_FALSE(text.weights().vision.has_value());
  ASSERT_TRUE(whole.weights().vision.has_value());
  EXPECT_EQ(whole.weights().vision->patch.in(), 1176);
  size_t vision_bytes = 0;
  for (const TensorRow& row : tensor_table(whole.config()))
    if (row.part == LedgerPart::kVision) vision_bytes += row.spec.bytes();
  EXPECT_EQ(whole.weight_bytes() - text.weight_bytes(), vision_bytes);
}

}  // namespace
}  // namespace sparrow::test
