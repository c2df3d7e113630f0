// SPDX-License-Identifier: Apache-2.0
#include "model/vision/tower.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/math.h"
#include "model/vision/segments.h"
#include "ops/vision_ops.h"

namespace sparrow {
namespace {

// Patches that go through a layer together, where segments are short; and rows of what is wider than a layer.
constexpr int64_t kRowsTogether = 4096, kWideRows = 1024;

Tensor matrix(Scratch::Scope& scratch, DType type, int64_t rows, int64_t columns) {
  return {
      scratch.take<std::byte>(rows * columns * static_cast<int64_t>(size_of(type))), type, {rows, columns}};
}

void linear(Exec& exec, const Tensor& x, const BiasedWeight& weight, const Tensor& out, bool gelu = false) {
  const ops::Projection projection{&weight.matrix, out, weight.bias, gelu};
  ops::linear(exec, x, {&projection, 1});
}

}  // namespace

// Of the segments that are on their way together.
struct VisionTower::Activations {
  int64_t rows = 0;
  std::vector<int64_t> begins = {0};  // of the segments
  Tensor residual, normed, delta;     // [rows, hidden]
  Tensor q, k, v, attended;           // [rows, hidden]
  ops::Rotary rotary;                 // [rows, angles]

  Activations(Scratch::Scope& scratch, DType type, const VisionConfig& vision,
              std::span<const PatchGrid> segments) {
    for (const PatchGrid& segment : segments) begins.push_back(rows += segment.patches());
    for (Tensor* tensor : {&residual, &normed, &delta, &q, &k, &v, &attended})
      *tensor = matrix(scratch, type, rows, vision.hidden_size);
    rotary = {matrix(scratch, DType::kF32, rows, rotary_angles(vision)),
              matrix(scratch, DType::kF32, rows, rotary_angles(vision))};
  }
};

VisionTower::VisionTower(const ModelConfig& config, const VisionWeights& weights)
    : config_(config), vision_(*config.vision), weights_(weights) {}

void VisionTower::encode(Exec& exec, const Tensor& patches, std::span<const PatchGrid> grids,
                         const Tensor& features, const TowerWatch& watch) const {
  std::vector<PatchGrid> segments;
  for (const PatchGrid& grid : grids)
    for (const PatchGrid& segment : segments_of(vision_, grid)) segments.push_back(segment);
  int64_t row = 0, token = 0;
  for (size_t first = 0, end = 0; first < segments.size(); first = end) {
    int64_t rows = 0;
    while (end < segments.size() && (rows == 0 || rows + segments[end].patches() <= kRowsTogether))
      rows += segments[end++].patches();
    const int64_t tokens = rows / merged_patches(vision_);
    encode_segments(exec, patches.rows_at(row, rows), std::span(segments).subspan(first, end - first),
                    features.rows_at(token, tokens), watch);
    row += rows, token += tokens;
  }
  SPARROW_CHECK_EQ(row, patches.rows());
  SPARROW_CHECK_EQ(token, features.rows());
}

void VisionTower::encode_segments(Exec& exec, const Tensor& patches, std::span<const PatchGrid> segments,
                                  const Tensor& features, const TowerWatch& watch) const {
  Scratch::Scope scratch(exec.scratch);
  Activations act(scratch, config_.dtype, vision_, segments);
  const auto seen = [&](TowerStage stage, int layer, const Tensor& rows) {
    if (watch) watch(stage, layer, rows);
  };
  patch_rotary(exec, vision_, segments, act.rotary);
  // Pixels and this matrix are f32, and they meet as that.
  ops::linear(exec, patches, std::array{ops::Projection{&weights_.patch, act.delta}});
  seen(TowerStage::kEmbedded, 0, act.delta);
  ops::layer_norm(exec, act.delta, norm_of(weights_.pre_norm), act.residual);
  seen(TowerStage::kNormed, 0, act.residual);
  for (size_t layer = 0; layer < weights_.layers.size(); ++layer) {
    const VisionLayerWeights& w = weights_.layers[layer];
    if (layer == 0)
      ops::layer_norm(exec, act.residual, norm_of(w.norm1), act.normed);
    else
      ops::add_layer_norm(exec, act.residual, act.delta, norm_of(w.norm1), act.normed);
    if (layer > 0) seen(TowerStage::kLayer, static_cast<int>(layer) - 1, act.residual);
    attention(exec, w, act);
    ops::add_layer_norm(exec, act.residual, act.delta, norm_of(w.norm2), act.normed);
    feed_forward(exec, w, act);
  }
  ops::add(exec, act.residual, act.delta);
  seen(TowerStage::kLayer, vision_.num_layers - 1, act.residual);
  project(exec, act, features, watch);
}

ops::LayerNorm VisionTower::norm_of(const NormWeights& norm) const {
  return {norm.weight, norm.bias, vision_.layer_norm_eps};
}

void VisionTower::attention(Exec& exec, const VisionLayerWeights& w, Activations& act) const {
  const std::array projections = {ops::Projection{&w.q.matrix, act.q, w.q.bias},
                                  ops::Projection{&w.k.matrix, act.k, w.k.bias},
                                  ops::Projection{&w.v.matrix, act.v, w.v.bias}};
  const int head_dim = vision_.hidden_size / vision_.num_heads;
  ops::linear(exec, act.normed, projections);
  ops::rope(exec, act.q, head_dim, act.rotary);
  ops::rope(exec, act.k, head_dim, act.rotary);
  ops::attend_segments(exec, {.q = act.q,
                              .k = act.k,
                              .v = act.v,
                              .out = act.attended,
                              .heads = vision_.num_heads,
                              .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
                              .begins = act.begins});
  linear(exec, act.attended, w.o, act.delta);
}

void VisionTower::feed_forward(Exec& exec, const VisionLayerWeights& w, Activations& act) const {
  for (int64_t row = 0; row < act.rows; row += kWideRows) {
    const int64_t count = std::min(kWideRows, act.rows - row);
    Scratch::Scope scratch(exec.scratch);
    const Tensor inner = matrix(scratch, config_.dtype, count, vision_.intermediate_size);
    linear(exec, act.normed.rows_at(row, count), w.up, inner, /*gelu=*/true);
    linear(exec, inner, w.down, act.delta.rows_at(row, count));
  }
}

// The projector takes patches, the merger those of a token side by side.
void VisionTower::project(Exec& exec, const Activations& act, const Tensor& features,
                          const TowerWatch& watch) const {
  const int64_t merged = merged_patches(vision_), together = round_up(kWideRows, merged);
  for (int64_t row = 0; row < act.rows; row += together) {
    const int64_t count = std::min(together, act.rows - row), tokens = count / merged;
    Scratch::Scope scratch(exec.scratch);
    const Tensor inner = matrix(scratch, config_.dtype, count, vision_.projector_hidden_size);
    const Tensor projected = matrix(scratch, config_.dtype, count, config_.hidden_size);
    linear(exec, act.residual.rows_at(row, count), weights_.projector_up, inner, /*gelu=*/true);
    linear(exec, inner, weights_.projector_down, projected);
    if (watch) watch(TowerStage::kProjected, 0, projected);
    const Tensor side_by_side(projected.data, projected.dtype, {tokens, merged * config_.hidden_size});
    linear(exec, side_by_side, weights_.merger_up, inner.rows_at(0, tokens), /*gelu=*/true);
    linear(exec, inner.rows_at(0, tokens), weights_.merger_down, features.rows_at(row / merged, tokens));
  }
}

int64_t VisionTower::scratch_bytes(const ModelConfig& config, CpuIsa isa, int threads,
                                   int64_t longest_segment) {
  const VisionConfig& vision = *config.vision;
  const int64_t rows = std::max(kRowsTogether, longest_segment), merged = merged_patches(vision);
  const auto element = static_cast<int64_t>(size_of(config.dtype));
  const auto buffer = [](int64_t count, int64_t columns, int64_t bytes) {
    return round_up(count * columns * bytes, int64_t{64});
  };
  const auto linear_bytes = [&](int64_t count, int64_t columns) {
    return ops::linear_scratch_bytes({isa, threads, config.dtype, format_of(config.dtype), count}, columns);
  };
  const int64_t projected = config.hidden_size, inner = vision.projector_hidden_size;
  return 7 * buffer(rows, vision.hidden_size, element) + 2 * buffer(rows, rotary_angles(vision), 4) +
         std::max({ops::linear_scratch_bytes({isa, threads, DType::kF32, MatrixFormat::kF32, rows},
                                             patch_numbers(vision)),
                   linear_bytes(rows, vision.hidden_size),
                   ops::segment_scratch_bytes({.isa = isa,
                                               .threads = threads,
                                               .type = config.dtype,
                                               .rows = rows,
                                               .longest = longest_segment,
                                               .width = vision.hidden_size}),
                   buffer(kWideRows, vision.intermediate_size, element) +
                       linear_bytes(kWideRows, std::max(vision.intermediate_size, vision.hidden_size)),
                   buffer(kWideRows, inner, element) + buffer(kWideRows, projected, element) +
                       std::max(linear_bytes(kWideRows, std::max<int64_t>(inner, vision.hidden_size)),
                                linear_bytes(kWideRows / merged, std::max(inner, merged * projected)))});
}

}  // namespace sparrow
