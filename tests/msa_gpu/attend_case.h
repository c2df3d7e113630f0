// SPDX-License-Identifier: Apache-2.0
// Random inputs for the Hopper attend kernels, and the scalar reference with double sums to hold their
// results against. Pages are unordered; every page that no request owns, and every key past the end of a
// sequence, is NaN.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "msa/reference.h"

namespace msa::sm90 {

// bf16 probabilities, partial results and outputs: each rounds at 2^-9; their sum stays under this. The
// reference reads the same numbers that e4m3 pages hold, so it serves both.
inline constexpr double kAttendTolerance = 5e-3;

#define ASSERT_CUDA(call) ASSERT_EQ(cudaSuccess, (call)) << #call

template <typename T>
struct Device {
  T* data = nullptr;
  size_t count = 0;
  explicit Device(size_t n) : count(n) {
    EXPECT_EQ(cudaSuccess, cudaMalloc(&data, std::max<size_t>(n, 1) * sizeof(T)));
  }
  explicit Device(const std::vector<T>& host) : Device(host.size()) {
    EXPECT_EQ(cudaSuccess, cudaMemcpy(data, host.data(), count * sizeof(T), cudaMemcpyHostToDevice));
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() { cudaFree(data); }
  void poison() { EXPECT_EQ(cudaSuccess, cudaMemset(data, 0xff, count * sizeof(T))); }
  std::vector<T> host() const {
    std::vector<T> out(count);
    EXPECT_EQ(cudaSuccess, cudaMemcpy(out.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
  }
};

float from_bf16(uint16_t bits);

enum class Pattern { kIndependent, kCorrelated, kIdentical };

struct Shape {
  std::vector<int> seq_lens;
  std::vector<int> queries;  // of each request
  int kv_heads = 1, group = 16, top_k = 16;
  Pattern pattern = Pattern::kIndependent;
  bool fp8 = false;
  bool scaled = false;  // e4m3 with a scale for each KV head's K and V
  uint32_t seed = 1;
  int spare_blocks = 3;  // columns of the block table beyond the longest context
};

struct Case {
  Shape shape;
  int total = 0, max_blocks = 0, num_pages = 0;
  std::vector<int32_t> cu, seq_lens, table, selected;
  std::vector<uint16_t> q, pages;  // pages: what the reference reads, scales applied
  std::vector<uint8_t> pages8;     // the same as e4m3, before the scales
  std::vector<float> kv_scales;    // [kv_heads, 2 (K, V)]; empty unless shape.scaled

  explicit Case(const Shape& s);
  Plan plan() const {
    return {static_cast<int>(seq_lens.size()), cu.data(), seq_lens.data(), table.data(), max_blocks};
  }

 private:
  void make_pages();
  void set_element(size_t at, float x, float scale);
  void make_selection();
  float normal();

  std::mt19937 rng_;
  std::vector<float> normals_;
  uint64_t state_ = 12345;
};

// The device's copy of a case; `out` is poisoned.
struct CaseOnDevice {
  const Case& c;
  Device<uint16_t> q, pages;
  Device<uint8_t> pages8;
  Device<float> kv_scales;
  Device<int32_t> selected, table, seq_lens, cu;
  Device<uint16_t> out;

  explicit CaseOnDevice(const Case& made);
  const void* kv_pages() const { return c.shape.fp8 ? static_cast<const void*>(pages8.data) : pages.data; }
  const float* scales() const { return c.shape.scaled ? kv_scales.data : nullptr; }
};

// Compares the first and last row of every request and others at random with the reference, all rows with
// infinity, and rows of requests without keys with zero.
void expect_matches_reference(const Case& c, const std::vector<uint16_t>& got,
                              double tolerance = kAttendTolerance);

// ||a - b|| / ||b|| of one row of all heads.
double row_difference(const Case& c, const std::vector<uint16_t>& a, const std::vector<uint16_t>& b, int row);

}  // namespace msa::sm90
