// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/vision/tower_load.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/threads/thread_pool.h"
#include "device/cuda/check.h"
#include "device/cuda/memory.h"

namespace sparrow {
namespace {

using Bf16 = __nv_bfloat16;

float number_at(const Tensor& tensor, int64_t i) {
  return tensor.dtype == DType::kF32 ? static_cast<const float*>(tensor.data)[i]
                                     : to_float(static_cast<const BFloat16*>(tensor.data)[i]);
}

class TowerLoader {
 public:
  explicit TowerLoader(const VisionConfig& vision)
      : vision_(vision), threads_(std::min(ThreadPool::default_size(), 12)) {}

  // Where a row of q or k goes: the channels that rotary pairs, side by side.
  int64_t paired(int64_t row) const {
    const int head_dim = ops::cuda::kTowerHeadDim, pairs = rotary_angles(vision_);
    const auto head = row / head_dim * head_dim, channel = row % head_dim;
    if (channel >= 2 * pairs) return row;
    return head + (channel < pairs ? 2 * channel : 2 * (channel - pairs) + 1);
  }

  // Into rows from `first_row` on.
  void matrix(const BiasedWeight& from, const TowerMatrix<Bf16>& to, int64_t first_row = 0,
              bool in_pairs = false) {
    const Tensor& values = from.matrix.values;
    const int64_t rows = from.bias.numel(), cols = to.cols;
    SPARROW_CHECK_EQ(values.numel(), rows * cols);
    SPARROW_CHECK_LE(first_row + rows, to.rows);
    numbers_.resize(static_cast<size_t>(rows * cols));
    bias_.resize(static_cast<size_t>(rows));
    threads_.parallel_for(rows, [&](int64_t row, int) {
      const int64_t place = in_pairs ? paired(row) : row;
      BFloat16* const out = numbers_.data() + place * cols;
      if (values.dtype == DType::kBF16)
        std::memcpy(out, static_cast<const BFloat16*>(values.data) + row * cols,
                    static_cast<size_t>(cols) * 2);
      else
        for (int64_t i = 0; i < cols; ++i) out[i] = to_bf16(number_at(values, row * cols + i));
      bias_[static_cast<size_t>(place)] = number_at(from.bias, row);
    });
    upload(to.w + first_row * cols, numbers_);
    upload(to.bias + first_row, bias_);
  }

  void norm(const NormWeights& from, const TowerNorm& to) {
    vector(from.weight, to.weight);
    vector(from.bias, to.bias);
  }

  // As h | h | l, and no bias.
  void patch(const ops::Weight& from, const TowerMatrix<Bf16>& to) {
    const int64_t numbers = to.cols / kPatchTerms;
    SPARROW_CHECK_EQ(from.values.numel(), to.rows * numbers);
    numbers_.resize(static_cast<size_t>(int64_t{to.rows} * to.cols));
    threads_.parallel_for(to.rows, [&](int64_t row, int) {
      BFloat16* const out = numbers_.data() + row * to.cols;
      for (int64_t i = 0; i < numbers; ++i) {
        const float x = number_at(from.values, row * numbers + i);
        out[i] = out[numbers + i] = to_bf16(x);
        out[2 * numbers + i] = to_bf16(x - to_float(out[i]));
      }
    });
    upload(to.w, numbers_);
    bias_.assign(static_cast<size_t>(to.rows), 0.0f);
    upload(to.bias, bias_);
  }

 private:
  void vector(const Tensor& from, float* to) {
    bias_.resize(static_cast<size_t>(from.numel()));
    for (int64_t i = 0; i < from.numel(); ++i) bias_[static_cast<size_t>(i)] = number_at(from, i);
    upload(to, bias_);
  }

  template <typename T>
  static void upload(void* to, const std::vector<T>& from) {
    SPARROW_CUDA(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  }

  const VisionConfig& vision_;
  ThreadPool threads_;
  std::vector<BFloat16> numbers_;
  std::vector<float> bias_;
};

}  // namespace

void load_tower(const ModelConfig& config, const VisionWeights& from, const TowerWeights<Bf16>& to) {
  const int hidden = config.vision->hidden_size;
  TowerLoader load(*config.vision);
  load.patch(from.patch, to.patch);
  load.norm(from.pre_norm, to.pre_norm);
  for (size_t i = 0; i < from.layers.size(); ++i) {
    const VisionLayerWeights& w = from.layers[i];
    const TowerLayer<Bf16>& layer = to.layers[i];
    load.norm(w.norm1, layer.norm1);
    load.norm(w.norm2, layer.norm2);
    load.matrix(w.q, layer.qkv, 0, /*in_pairs=*/true);
    load.matrix(w.k, layer.qkv, hidden, /*in_pairs=*/true);
    load.matrix(w.v, layer.qkv, 2 * hidden);
    load.matrix(w.o, layer.o);
    load.matrix(w.up, layer.up);
    load.matrix(w.down, layer.down);
  }
  load.matrix(from.projector_up, to.projector_up);
  load.matrix(from.projector_down, to.projector_down);
  load.matrix(from.merger_up, to.merger_up);
  load.matrix(from.merger_down, to.merger_down);
  SPARROW_CUDA(cudaDeviceSynchronize());  // other streams do not wait for these copies
}

// Uniform numbers with which outputs of 1,280 inputs of order 1 are of order 1. Two of them side by side are
// a bias or a norm's weight of that size.
void fill_tower(const DeviceBuffer& memory) {
  constexpr float kSpread = 0.097f;
  std::vector<BFloat16> pool(size_t{8} << 20);
  uint32_t state = 1;
  for (BFloat16& x : pool) {
    state = state * 1664525u + 1013904223u;
    x = to_bf16((static_cast<float>(state >> 8) * 0x1p-24f - 0.5f) * kSpread);
  }
  const size_t bytes = pool.size() * sizeof(BFloat16);
  for (size_t at = 0; at < memory.bytes(); at += bytes)
    SPARROW_CUDA(cudaMemcpy(memory.as<uint8_t>() + at, pool.data(), std::min(bytes, memory.bytes() - at),
                            cudaMemcpyHostToDevice));
  SPARROW_CUDA(cudaDeviceSynchronize());
}

}  // namespace sparrow
