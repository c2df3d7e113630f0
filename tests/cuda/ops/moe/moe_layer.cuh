// SPDX-License-Identifier: Apache-2.0
// A layer's experts for tests: random weights and inputs, and a plain reference with float64 sums.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "device/cuda/check.h"
#include "ops/cuda/moe/families.h"

namespace sparrow::ops::cuda {

inline constexpr float kAlpha = 1.702f, kLimit = 7.0f, kBeta = 1.0f, kScaling = 2.0f;
// Of a row's norm. Rounding the result alone costs 1.1e-3 (bf16 keeps 8 bits, 2^-9 / sqrt(3)), and a hidden
// value near a tie may round the other way. Many rows round each expert's part as well, and parts may be
// larger than their sum.
inline constexpr double kFewTolerance = 2.5e-3, kManyTolerance = 4e-3;

inline double tolerance(const MoeShape& shape, int rows) {
  return moe_few_fits(shape, rows) ? kFewTolerance : kManyTolerance;
}

template <typename T>
struct Device {
  T* data = nullptr;
  size_t count;
  explicit Device(size_t n) : count(n) {
    SPARROW_CUDA(cudaMalloc(&data, std::max<size_t>(n, 1) * sizeof(T)));
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() { SPARROW_CUDA(cudaFree(data)); }
  void upload(const std::vector<T>& host) {
    SPARROW_CUDA(cudaMemcpy(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> download() const {
    std::vector<T> host(count);
    SPARROW_CUDA(cudaMemcpy(host.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }
  void poison() { SPARROW_CUDA(cudaMemset(data, 0xff, count * sizeof(T))); }
};

static __global__ void fill(__nv_bfloat16* data, size_t count, float size, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + seed * 97u;
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
    data[i] = __float2bfloat16(size * (static_cast<float>(x) * 0x1p-31f - 1.0f));
  }
}

static __device__ double warp_dot(const __nv_bfloat16* a, const __nv_bfloat16* b, int n) {
  double sum = 0;
  for (int i = threadIdx.x % 32; i < n; i += 32)
    sum += double(__bfloat162float(a[i])) * __bfloat162float(b[i]);
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffff, sum, distance);
  return sum;
}

struct Reference {
  MoeShape shape;
  MoeArgs args;
  __nv_bfloat16* hidden;  // [rows, top_k + 1, inter]
  double* out;            // [rows, hidden]
};

// Negative: not there.
static __device__ int expert_of(const Reference& r, int row, int slot) {
  return slot == r.shape.top_k ? r.shape.num_experts : r.args.ids[row * r.shape.top_k + slot];
}

// One warp for each hidden value.
static __global__ void reference_hidden(Reference r) {
  const int inter = r.shape.inter, slots = r.shape.top_k + 1;
  const int64_t i = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) / 32;
  if (i >= int64_t{r.args.rows} * slots * inter) return;
  const int channel = i % inter, slot = i / inter % slots, row = i / inter / slots;
  if (expert_of(r, row, slot) < 0) return;
  const __nv_bfloat16* x = r.args.x + int64_t{row} * r.shape.hidden;
  const int64_t gate_row = int64_t{expert_of(r, row, slot)} * 2 * inter + channel / 8 * 16 + channel % 8;
  const auto* gate_up = static_cast<const __nv_bfloat16*>(r.args.gate_up.values);
  const double gate = warp_dot(x, gate_up + gate_row * r.shape.hidden, r.shape.hidden);
  const double up = warp_dot(x, gate_up + (gate_row + 8) * r.shape.hidden, r.shape.hidden);
  const double g = fmin(gate, double(kLimit)), u = fmin(fmax(up, -double(kLimit)), double(kLimit));
  if (threadIdx.x % 32 == 0)
    r.hidden[i] = __double2bfloat16((u + kBeta) * g / (1 + exp(-double(kAlpha) * g)));
}

static __global__ void reference_out(Reference r) {
  const int inter = r.shape.inter, slots = r.shape.top_k + 1;
  const int64_t i = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) / 32;
  if (i >= int64_t{r.args.rows} * r.shape.hidden) return;
  const int channel = i % r.shape.hidden, row = i / r.shape.hidden;
  double sum = 0;
  for (int slot = 0; slot < slots; ++slot) {
    if (expert_of(r, row, slot) < 0) continue;
    const int64_t w_row = int64_t{expert_of(r, row, slot)} * r.shape.hidden + channel;
    const auto* down = static_cast<const __nv_bfloat16*>(r.args.down.values);
    const double part =
        warp_dot(r.hidden + (int64_t{row} * slots + slot) * inter, down + w_row * inter, inter);
    sum += slot == r.shape.top_k ? part : part * r.args.weights[row * r.shape.top_k + slot] * kScaling;
  }
  if (threadIdx.x % 32 == 0) r.out[i] = sum;
}

enum class Routing { kRandom, kOneExpert, kFewExperts };

// Weights of a layer, and inputs of up to max_rows rows.
struct Layer {
  MoeShape shape;
  int max_rows;
  Device<__nv_bfloat16> x, gate_up, down, out;
  Device<int32_t> ids;
  Device<float> weights;
  Device<uint8_t> workspace;

  Layer(const MoeShape& s, int rows)
      : shape(s),
        max_rows(rows),
        x(size_t(rows) * s.hidden),
        gate_up(size_t(s.num_experts + 1) * 2 * s.inter * s.hidden),
        down(size_t(s.num_experts + 1) * s.hidden * s.inter),
        out(size_t(rows) * s.hidden),
        ids(size_t(rows) * s.top_k),
        weights(size_t(rows) * s.top_k),
        workspace(moe_workspace_bytes(s, rows)) {
    // Gates with a deviation near 4: some pass the limit.
    fill<<<512, 256>>>(gate_up.data, gate_up.count, 12 / std::sqrt(float(s.hidden)), 1);
    fill<<<512, 256>>>(down.data, down.count, 1 / std::sqrt(float(s.inter)), 2);
    set_inputs(3, Routing::kRandom);
    SPARROW_CUDA(cudaMemset(workspace.data, 0, workspace.count));
  }

  // All but the word that must be zero before the first launch.
  void poison_workspace() {
    SPARROW_CUDA(cudaMemset(workspace.data + kMoeBarrierBytes, 0xff, workspace.count - kMoeBarrierBytes));
  }

  void set_inputs(uint32_t seed, Routing routing) {
    fill<<<512, 256>>>(x.data, x.count, 1, seed);
    std::mt19937 rng(seed);
    std::vector<int32_t> order(shape.num_experts), all;
    std::vector<float> factors;
    std::iota(order.begin(), order.end(), 0);
    for (int row = 0; row < max_rows && shape.num_experts > 0; ++row) {
      // kOneExpert: expert 2 in every row; kFewExperts: the last two experts stay without a row.
      const int reach = routing == Routing::kFewExperts ? shape.num_experts - 2 : shape.num_experts;
      std::sort(order.begin(), order.end());
      std::shuffle(order.begin(), order.begin() + reach, rng);
      if (routing == Routing::kOneExpert) std::swap(order[0], *std::find(order.begin(), order.end(), 2));
      std::sort(order.begin(), order.begin() + shape.top_k);
      float sum = 0;
      for (int k = 0; k < shape.top_k; ++k) {
        all.push_back(order[k]);
        factors.push_back(0.1f + float(rng() % 1000) / 1000);
        sum += factors.back();
      }
      for (int k = 0; k < shape.top_k; ++k) factors[factors.size() - 1 - k] /= sum;
    }
    ids.upload(all);
    weights.upload(factors);
  }

  MoeArgs args(int rows) {
    return {.x = x.data,
            .ids = ids.data,
            .weights = weights.data,
            .gate_up = bf16_matrix(gate_up.data, (shape.num_experts + 1) * 2 * shape.inter, shape.hidden),
            .down = bf16_matrix(down.data, (shape.num_experts + 1) * shape.hidden, shape.inter),
            .alpha = kAlpha,
            .limit = kLimit,
            .beta = kBeta,
            .scaling = kScaling,
            .out = out.data,
            .workspace = workspace.data,
            .rows = rows};
  }

  std::vector<__nv_bfloat16> run(int rows, bool batch_invariant = false) {
    out.poison();
    poison_workspace();
    MoeArgs all = args(rows);
    all.batch_invariant = batch_invariant;
    moe(shape, all, nullptr);
    SPARROW_CUDA(cudaDeviceSynchronize());
    return out.download();
  }

  // Of the worst row, relative to its norm.
  double error(int rows, const std::vector<__nv_bfloat16>& result) {
    Device<__nv_bfloat16> hidden(size_t(rows) * (shape.top_k + 1) * shape.inter);
    Device<double> expected(size_t(rows) * shape.hidden);
    const Reference r{shape, args(rows), hidden.data, expected.data};
    reference_hidden<<<(hidden.count + 7) / 8, 256>>>(r);
    reference_out<<<(expected.count + 7) / 8, 256>>>(r);
    const std::vector<double> host = expected.download();
    double worst = 0;
    for (int row = 0; row < rows; ++row) {
      double difference = 0, norm = 0;
      for (size_t i = size_t(row) * shape.hidden; i < size_t(row + 1) * shape.hidden; ++i) {
        const double d = double(__bfloat162float(result[i])) - host[i];
        if (!std::isfinite(d)) return INFINITY;
        difference += d * d, norm += host[i] * host[i];
      }
      worst = std::max(worst, std::sqrt(difference / norm));
    }
    return worst;
  }
};

inline bool same_bits(const std::vector<__nv_bfloat16>& a, const std::vector<__nv_bfloat16>& b,
                      size_t count) {
  return std::memcmp(a.data(), b.data(), count * sizeof(a[0])) == 0;
}

inline constexpr MoeShape kTiny{128, 128, 8, 2}, kSmall{1024, 512, 16, 4}, kRank{6144, 384, 10, 4},
    kOdd{320, 192, 7, 3}, kTinyMlp{128, 128, 0, 0}, kRankMlp{6144, 1536, 0, 0}, kOddMlp{192, 64, 0, 0};

}  // namespace sparrow::ops::cuda
