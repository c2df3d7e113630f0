// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/vision/cuda_vision_tower.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/math.h"
#include "base/threads/thread_pool.h"
#include "device/cuda/check.h"
#include "device/cuda/device_info.h"
#include "model/cuda/vision/tower_load.h"
#include "ops/cuda/vision/attend.h"
#include "ops/cuda/vision/product.h"
#include "ops/cuda/vision/rows.h"

namespace sparrow {
namespace {

using Bf16 = __nv_bfloat16;
using ops::cuda::TowerEnd;

constexpr int kSms = 132;  // of an H200

int64_t rows_of(const TowerSegment& segment) {
  return round_up(segment.grid.patches(), int64_t{ops::cuda::kSegmentAlignment});
}

void multiply(const TowerMatrix<Bf16>& w, const Bf16* x, Bf16* out, int64_t rows, cudaStream_t stream,
              TowerEnd end = TowerEnd::kBias, const Bf16* residual = nullptr) {
  ops::cuda::tower_product({.x = x,
                            .w = w.w,
                            .bias = w.bias,
                            .out = out,
                            .rows = static_cast<int>(rows),
                            .n = w.rows,
                            .k = w.cols,
                            .end = end,
                            .residual = residual},
                           stream);
}

}  // namespace

Result<std::unique_ptr<CudaVisionTower>> CudaVisionTower::create(const ModelConfig& config,
                                                                 const VisionWeights& weights,
                                                                 const TowerLimits& limits) {
  SPARROW_TRY(check_tower_shapes(config));
  auto tower = std::unique_ptr<CudaVisionTower>(new CudaVisionTower(config, limits));
  SPARROW_TRY(tower->take_memory());
  load_tower(config, weights, tower->weights_);
  return tower;
}

Result<std::unique_ptr<CudaVisionTower>> CudaVisionTower::random(const ModelConfig& config,
                                                                 const TowerLimits& limits) {
  SPARROW_TRY(check_tower_shapes(config));
  auto tower = std::unique_ptr<CudaVisionTower>(new CudaVisionTower(config, limits));
  SPARROW_TRY(tower->take_memory());
  fill_tower(tower->weight_memory_);
  return tower;
}

Status CudaVisionTower::take_memory() {
  Arena counted_weights, counted;
  lay_out_tower_weights<Bf16>(counted_weights, config_);
  lay_out_tower<Bf16>(counted, config_, limits_);
  weight_memory_ = SPARROW_TRY(DeviceBuffer::allocate(counted_weights.used()));
  memory_ = SPARROW_TRY(DeviceBuffer::allocate(counted.used()));
  host_upload_ =
      SPARROW_TRY(PinnedBuffer::allocate(static_cast<size_t>(tower_upload_bytes(vision_, limits_.max_rows))));
  host_staged_ = SPARROW_TRY(PinnedBuffer::allocate(static_cast<size_t>(
      limits_.staged_rows() * patch_numbers(vision_) * static_cast<int64_t>(sizeof(float)))));
  Arena weight_arena(weight_memory_.data()), arena(memory_.data());
  weights_ = lay_out_tower_weights<Bf16>(weight_arena, config_);
  at_ = lay_out_tower<Bf16>(arena, config_, limits_);
  fill_axis();
  return Ok{};
}

// With the CPU's own numbers.
void CudaVisionTower::fill_axis() {
  const int64_t places = limits_.max_rows, angles = axis_angles(vision_);
  ThreadPool threads(1);
  Scratch scratch;
  Exec exec{threads, scratch, CpuIsa::kScalar};
  std::vector<float> cos(static_cast<size_t>(places * angles)), sin(cos.size());
  axis_rotary(
      exec, vision_,
      {Tensor(cos.data(), DType::kF32, {places, angles}), Tensor(sin.data(), DType::kF32, {places, angles})});
  std::vector<Turn> turns(cos.size());
  for (size_t i = 0; i < turns.size(); ++i) turns[i] = {cos[i], sin[i]};
  SPARROW_CUDA(cudaMemcpy(at_.axis, turns.data(), turns.size() * sizeof(Turn), cudaMemcpyHostToDevice));
  SPARROW_CUDA(cudaDeviceSynchronize());
}

void CudaVisionTower::encode(std::span<const TowerSegment> segments, Bf16* features, cudaStream_t stream) {
  for (size_t first = 0, end = 0; first < segments.size(); first = end) {
    int64_t rows = 0;
    while (end < segments.size() && (rows == 0 || rows + rows_of(segments[end]) <= limits_.max_rows))
      rows += rows_of(segments[end++]);
    SPARROW_CHECK_LE(rows, limits_.max_rows);
    encode_group(segments.subspan(first, end - first), rows, features, stream);
  }
}

void CudaVisionTower::encode_group(std::span<const TowerSegment> segments, int64_t rows, Bf16* features,
                                   cudaStream_t stream) {
  const int num_items = send_metadata(segments, rows, stream);
  embed(segments, stream);
  layers(rows, num_items, stream);
  project(rows, features, stream);
}

int CudaVisionTower::send_metadata(std::span<const TowerSegment> segments, int64_t rows,
                                   cudaStream_t stream) {
  copied_.wait();
  Arena host_arena(host_upload_.data()), arena(at_.upload);
  const TowerUpload host = lay_out_tower_upload(host_arena, vision_, rows);
  upload_ = lay_out_tower_upload(arena, vision_, rows);
  const int64_t merged = merged_patches(vision_);
  std::vector<ops::cuda::SegmentRows> begins;
  std::fill_n(host.places, rows, PatchPlace{0, 0, 0});
  std::fill_n(host.token_rows, rows / merged, -1);
  int64_t row = 0;
  for (const TowerSegment& segment : segments) {
    const std::vector<PatchPlace> places = patch_places(vision_, segment.grid);
    std::copy(places.begin(), places.end(), host.places + row);
    std::copy(segment.rows.begin(), segment.rows.end(), host.token_rows + row / merged);
    begins.push_back({static_cast<int>(row), static_cast<int>(row + segment.grid.patches())});
    row += rows_of(segment);
  }
  const std::vector<ops::cuda::SegmentItem> items = ops::cuda::segment_items(begins, vision_.num_heads, kSms);
  std::copy(items.begin(), items.end(), host.items);
  SPARROW_CUDA(
      cudaMemcpyAsync(at_.upload, host_upload_.data(), arena.used(), cudaMemcpyHostToDevice, stream));
  copied_.record(stream);
  ops::cuda::patch_rotary({.places = &upload_.places->t,
                           .axis = reinterpret_cast<const float2*>(at_.axis),
                           .out = reinterpret_cast<float2*>(at_.rotary),
                           .rows = static_cast<int>(rows),
                           .angles = axis_angles(vision_)},
                          stream);
  return static_cast<int>(items.size());
}

void CudaVisionTower::embed(std::span<const TowerSegment> segments, cudaStream_t stream) {
  const int64_t numbers = patch_numbers(vision_), most = limits_.staged_rows();
  float* const host = host_staged_.as<float>();
  int64_t staged = 0, done = 0;  // rows
  const auto send = [&] {
    SPARROW_CUDA(cudaMemcpyAsync(at_.staged, host, static_cast<size_t>(staged * numbers) * sizeof(float),
                                 cudaMemcpyHostToDevice, stream));
    copied_.record(stream);
    ops::cuda::split_terms({.x = at_.staged,
                            .out = at_.terms,
                            .rows = static_cast<int>(staged),
                            .numbers = static_cast<int>(numbers)},
                           stream);
    multiply(weights_.patch, at_.terms, at_.normed + done * vision_.hidden_size, staged, stream);
    done += std::exchange(staged, 0);
  };
  for (const TowerSegment& segment : segments) {
    const int64_t patches = segment.grid.patches(), rows = rows_of(segment);
    SPARROW_CHECK_EQ(static_cast<int64_t>(segment.patches.size()), patches * numbers);
    for (int64_t first = 0, count = 0; first < rows; first += count) {
      if (staged == 0) copied_.wait();
      count = std::min(most - staged, rows - first);
      const int64_t there = std::min(count, patches - first);
      float* const to = host + staged * numbers;
      std::copy_n(segment.patches.data() + first * numbers, there * numbers, to);
      std::fill_n(to + there * numbers, (count - there) * numbers, 0.0f);
      if ((staged += count) == most) send();
    }
  }
  if (staged > 0) send();
  norm(weights_.pre_norm, at_.normed, at_.residual, done, stream);
}

void CudaVisionTower::norm(const TowerNorm& norm, const Bf16* x, Bf16* out, int64_t rows,
                           cudaStream_t stream) const {
  ops::cuda::layer_norm({.x = x,
                         .weight = norm.weight,
                         .bias = norm.bias,
                         .out = out,
                         .rows = static_cast<int>(rows),
                         .hidden = vision_.hidden_size,
                         .eps = vision_.layer_norm_eps},
                        stream);
}

void CudaVisionTower::layers(int64_t rows, int num_items, cudaStream_t stream) {
  const int64_t hidden = vision_.hidden_size, wide = limits_.wide_rows();
  for (const TowerLayer<Bf16>& w : weights_.layers) {
    norm(w.norm1, at_.residual, at_.normed, rows, stream);
    ops::cuda::tower_product({.x = at_.normed,
                              .w = w.qkv.w,
                              .bias = w.qkv.bias,
                              .out = at_.heads,
                              .rows = static_cast<int>(rows),
                              .n = w.qkv.rows,
                              .k = w.qkv.cols,
                              .end = TowerEnd::kHeads,
                              .rotary = reinterpret_cast<const float2*>(at_.rotary)},
                             stream);
    ops::cuda::attend_segments({.heads = at_.heads,
                                .items = upload_.items,
                                .out = at_.normed,
                                .rows = static_cast<int>(rows),
                                .num_items = num_items,
                                .num_heads = vision_.num_heads,
                                .scale = 1.0f / std::sqrt(static_cast<float>(ops::cuda::kTowerHeadDim))},
                               stream);
    multiply(w.o, at_.normed, at_.residual, rows, stream, TowerEnd::kResidual, at_.residual);
    norm(w.norm2, at_.residual, at_.normed, rows, stream);
    for (int64_t row = 0; row < rows; row += wide) {
      const int64_t count = std::min(wide, rows - row);
      Bf16* const residual = at_.residual + row * hidden;
      multiply(w.up, at_.normed + row * hidden, at_.inner, count, stream, TowerEnd::kGelu);
      multiply(w.down, at_.inner, residual, count, stream, TowerEnd::kResidual, residual);
    }
  }
}

// The projector takes patches, the merger those of a token side by side.
void CudaVisionTower::project(int64_t rows, Bf16* features, cudaStream_t stream) {
  const int64_t merged = merged_patches(vision_), wide = limits_.wide_rows();
  for (int64_t row = 0; row < rows; row += wide) {
    const int64_t count = std::min(wide, rows - row), tokens = count / merged;
    multiply(weights_.projector_up, at_.residual + row * vision_.hidden_size, at_.inner, count, stream,
             TowerEnd::kGelu);
    multiply(weights_.projector_down, at_.inner, at_.projected, count, stream);
    multiply(weights_.merger_up, at_.projected, at_.inner, tokens, stream, TowerEnd::kGelu);
    multiply(weights_.merger_down, at_.inner, at_.tokens, tokens, stream);
    ops::cuda::scatter_rows({.from = at_.tokens,
                             .rows = upload_.token_rows + row / merged,
                             .to = features,
                             .count = static_cast<int>(tokens),
                             .columns = config_.hidden_size},
                            stream);
  }
}

}  // namespace sparrow
