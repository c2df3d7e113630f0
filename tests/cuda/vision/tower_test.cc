// SPDX-License-Identifier: Apache-2.0
// The vision tower on a GPU against what transformers computed, and against itself in other company.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "checkpoint/checkpoint.h"
#include "cuda/device_array.h"
#include "device/cuda/memory.h"
#include "model/cuda/vision/cuda_vision_tower.h"
#include "support/golden.h"
#include "support/vision/pictures.h"

namespace sparrow::test {
namespace {

using Bf16 = __nv_bfloat16;

class CudaVisionTowerTest : public ::testing::Test {
 protected:
  const ModelConfig& config() const { return checkpoint_.config(); }

  std::unique_ptr<CudaVisionTower> make(int64_t max_rows) const {
    auto tower = CudaVisionTower::create(config(), *checkpoint_.weights().vision, {.max_rows = max_rows});
    EXPECT_TRUE(tower.ok()) << tower.error().message;
    return std::move(tower).value();
  }

  // Features of each picture, all in one call; their rows lie far apart in the feature memory.
  std::vector<std::vector<float>> encode(CudaVisionTower& tower,
                                         std::span<const Picture* const> pictures) const {
    std::vector<std::vector<int32_t>> rows;
    std::vector<TowerSegment> segments;
    int32_t total = 0;
    for (const Picture* picture : pictures) {
      std::vector<int32_t>& own = rows.emplace_back(picture->grid.patches() / 4);
      std::iota(own.begin(), own.end(), total);
      total += static_cast<int32_t>(own.size());
    }
    for (std::vector<int32_t>& own : rows)
      for (int32_t& row : own) row = total - 1 - row;  // from the last to the first
    for (size_t i = 0; i < pictures.size(); ++i)
      segments.push_back({pictures[i]->grid, pictures[i]->rows, rows[i]});
    const size_t hidden = config().hidden_size;
    const DeviceArray<Bf16> features(total * hidden);
    const Stream stream;
    SPARROW_CUDA(cudaDeviceSynchronize());
    tower.encode(segments, features.data(), stream.get());
    const std::vector<Bf16> all = features.download();
    std::vector<std::vector<float>> result;
    for (const std::vector<int32_t>& own : rows) {
      std::vector<float>& numbers = result.emplace_back();
      for (const int32_t row : own)
        for (size_t c = 0; c < hidden; ++c) numbers.push_back(__bfloat162float(all[row * hidden + c]));
    }
    return result;
  }

  const Checkpoint checkpoint_ = Checkpoint::open(vision_dir() / "model").value();
  const TensorFile golden_{vision_dir() / "features.golden.safetensors"};
  const std::vector<Picture> pictures_ = golden_pictures(*config().vision);
};

// transformers in bf16 is up to 2.1e-2 off its own f32.
TEST_F(CudaVisionTowerTest, IsNearerToF32ThanTransformersInBf16) {
  const auto tower = make(65536);
  double worst = 0;
  for (const Picture& picture : pictures_) {
    const auto features = encode(*tower, std::array{&picture});
    const double error = relative_error(features[0], golden_.floats(picture.name + ".features"));
    EXPECT_LT(error, 2.1e-2) << picture.name;
    worst = std::max(worst, error);
  }
  std::printf("worst of %zu images: %.2e\n", pictures_.size(), worst);
  EXPECT_GE(pictures_.size(), 20u);
}

TEST_F(CudaVisionTowerTest, AnImagesBitsDependOnItAlone) {
  const auto tower = make(65536), small = make(8192);
  std::vector<const Picture*> order;
  for (const Picture& picture : pictures_)
    if (picture.grid.patches() <= 8192) order.push_back(&picture);
  std::vector<std::vector<float>> alone;
  for (const Picture* picture : order) alone.push_back(encode(*tower, std::array{picture})[0]);
  for (CudaVisionTower* one : {tower.get(), small.get()}) {  // all at once, and in groups
    const auto together = encode(*one, order);
    for (size_t i = 0; i < order.size(); ++i) EXPECT_TRUE(together[i] == alone[i]) << order[i]->name;
  }
}

TEST_F(CudaVisionTowerTest, TakesTheMemoryThatWasPlanned) {
  const AllocationCounts before = allocation_counts();
  const TowerLimits limits{.max_rows = 4096};
  const auto tower = make(limits.max_rows);
  Arena weights, buffers;
  lay_out_tower_weights<BFloat16>(weights, config());
  lay_out_tower<BFloat16>(buffers, config(), limits);
  EXPECT_EQ(tower->weight_bytes(), weights.used());
  EXPECT_EQ(tower->workspace_bytes(), buffers.used());
  const AllocationCounts after = allocation_counts();
  EXPECT_EQ(after.device.bytes - before.device.bytes, static_cast<int64_t>(weights.used() + buffers.used()));
  EXPECT_EQ(after.pinned.bytes - before.pinned.bytes, static_cast<int64_t>(tower->pinned_bytes()));
  encode(*tower, std::array{&pictures_.front()});
  EXPECT_EQ(allocation_counts().device.allocations, after.device.allocations);
}

TEST_F(CudaVisionTowerTest, RandomWeightsGiveFiniteFeaturesThatDependOnThePicture) {
  const auto tower = CudaVisionTower::random(config(), {.max_rows = 65536}).value();
  ASSERT_GE(pictures_.size(), 2u);
  const auto features = encode(*tower, std::array{&pictures_[0], &pictures_[1]});
  for (const std::vector<float>& numbers : features) {
    EXPECT_TRUE(std::ranges::all_of(numbers, [](float x) { return std::isfinite(x); }));
    EXPECT_TRUE(std::ranges::any_of(numbers, [](float x) { return x != 0; }));
  }
  EXPECT_NE(features[0], features[1]);
}

}  // namespace
}  // namespace sparrow::test
