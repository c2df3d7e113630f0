// SPDX-License-Identifier: Apache-2.0
// CudaVisionTower: patch rows of images and clips -> rows of the feature memory, on a GPU. Owns its weights
// and the activations of the largest group of segments; launches, and waits only for copies of its own. A
// segment's features depend on its own patches alone, to the bit, whatever is encoded with it.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <memory>
#include <span>

#include "base/patch_grid.h"
#include "base/result.h"
#include "checkpoint/weights.h"
#include "config/config.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "model/vision/tower_layout.h"

namespace sparrow {

// An image, or a run of a clip's temporal patches.
struct TowerSegment {
  PatchGrid grid;
  std::span<const float> patches;  // [patches, numbers of a patch]
  std::span<const int32_t> rows;   // of the feature memory, for its tokens in their order
};

class CudaVisionTower {
 public:
  // The configuration is borrowed. Error: the kernels do not take this tower, or there is no memory for it.
  static Result<std::unique_ptr<CudaVisionTower>> create(const ModelConfig& config,
                                                         const VisionWeights& weights,
                                                         const TowerLimits& limits);
  // With random weights: for measurements.
  static Result<std::unique_ptr<CudaVisionTower>> random(const ModelConfig& config,
                                                         const TowerLimits& limits);

  // `features` is [*, hidden size]. No segment has more patches than the limits allow; any number of them
  // goes through the tower in groups. What the spans name is free again when this returns.
  void encode(std::span<const TowerSegment> segments, __nv_bfloat16* features, cudaStream_t stream);

  size_t weight_bytes() const { return weight_memory_.bytes(); }
  size_t workspace_bytes() const { return memory_.bytes(); }
  size_t pinned_bytes() const { return host_upload_.bytes() + host_staged_.bytes(); }

 private:
  using Bf16 = __nv_bfloat16;

  CudaVisionTower(const ModelConfig& config, const TowerLimits& limits)
      : config_(config), vision_(*config.vision), limits_(limits) {}
  Status take_memory();
  void fill_axis();
  // Of segments that fit together, which have so many rows.
  void encode_group(std::span<const TowerSegment> segments, int64_t rows, Bf16* features,
                    cudaStream_t stream);
  // Places, items and rows of the group; how many items there are.
  int send_metadata(std::span<const TowerSegment> segments, int64_t rows, cudaStream_t stream);
  // Patches -> the residual.
  void embed(std::span<const TowerSegment> segments, cudaStream_t stream);
  void layers(int64_t rows, int num_items, cudaStream_t stream);
  void project(int64_t rows, Bf16* features, cudaStream_t stream);
  void norm(const TowerNorm& norm, const Bf16* x, Bf16* out, int64_t rows, cudaStream_t stream) const;

  const ModelConfig& config_;
  const VisionConfig& vision_;
  const TowerLimits limits_;
  DeviceBuffer weight_memory_, memory_;
  PinnedBuffer host_upload_, host_staged_;
  TowerWeights<Bf16> weights_;
  TowerBuffers<Bf16> at_{};
  TowerUpload upload_{};  // of the group
  Event copied_;          // what the page-locked buffers held
};

}  // namespace sparrow
