// SPDX-License-Identifier: Apache-2.0
// VisionTower: patch rows of images and clips -> the rows that stand for them in a prompt. On the CPU. A
// medium's features depend on its own patches alone, to the bit, whatever is encoded with it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/patch_grid.h"
#include "checkpoint/weights.h"
#include "config/config.h"
#include "device/exec.h"
#include "ops/vision_ops.h"

namespace sparrow {

// What there is to see on the way, for comparison.
enum class TowerStage : uint8_t { kEmbedded, kNormed, kLayer, kProjected };
// Called with the rows of some segments after others; `layer` is that of kLayer.
using TowerWatch = std::function<void(TowerStage stage, int layer, const Tensor& rows)>;

class VisionTower {
 public:
  // Both must stay; the configuration has a vision part.
  VisionTower(const ModelConfig& config, const VisionWeights& weights);

  // `patches` [patches of all grids, numbers of a patch] f32 -> `features` [tokens of all grids, hidden size]
  // of the model's type. Segments go through the tower a few at a time, which bounds its scratch memory.
  void encode(Exec& exec, const Tensor& patches, std::span<const PatchGrid> grids, const Tensor& features,
              const TowerWatch& watch = {}) const;

  // The most scratch memory that encode() takes where no segment has more patches.
  static int64_t scratch_bytes(const ModelConfig& config, CpuIsa isa, int threads, int64_t longest_segment);

 private:
  struct Activations;

  void encode_segments(Exec& exec, const Tensor& patches, std::span<const PatchGrid> segments,
                       const Tensor& features, const TowerWatch& watch) const;
  ops::LayerNorm norm_of(const NormWeights& norm) const;
  void attention(Exec& exec, const VisionLayerWeights& layer, Activations& act) const;
  void feed_forward(Exec& exec, const VisionLayerWeights& layer, Activations& act) const;
  void project(Exec& exec, const Activations& act, const Tensor& features, const TowerWatch& watch) const;

  const ModelConfig& config_;
  const VisionConfig& vision_;
  const VisionWeights& weights_;
};

}  // namespace sparrow
