// SPDX-License-Identifier: Apache-2.0
// Linear layers of few rows on a GPU against float64 sums.
#include "ops/cuda/linear_small.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "device/cuda/check.h"

namespace sparrow::ops::cuda {
namespace {

// Of an element, relative to the sum of its products' sizes: f32 sums of at most 6144 products.
constexpr double kF32Tolerance = 2e-6;
constexpr double kBf16Rounding = 0x1p-8;  // of the element itself

__global__ void fill(__nv_bfloat16* data, int64_t count, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + seed * 97u;
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
    data[i] = __float2bfloat16(static_cast<float>(x) * 0x1p-31f - 1.0f);
  }
}

// One warp for each element: the sum, and the sum of sizes.
__global__ void reference(const __nv_bfloat16* w, const __nv_bfloat16* x, double* sums, double* sizes,
                          int rows, int out, int in) {
  const int64_t i = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) / 32;
  if (i >= int64_t{rows} * out) return;
  double sum = 0, size = 0;
  for (int c = threadIdx.x % 32; c < in; c += 32) {
    const double product =
        double(__bfloat162float(x[i / out * in + c])) * __bfloat162float(w[i % out * in + c]);
    sum += product, size += fabs(product);
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, distance);
    size += __shfl_xor_sync(0xffffffff, size, distance);
  }
  if (threadIdx.x % 32 == 0) sums[i] = sum, sizes[i] = size;
}

struct Case {
  int out, in;
};

class LinearSmallTest : public testing::TestWithParam<Case> {
 protected:
  static constexpr int kGuard = 64;  // elements behind the result that must stay as they are
  void SetUp() override {
    const auto [out, in] = GetParam();
    SPARROW_CUDA(cudaMalloc(&w_, int64_t{out} * in * 2));
    SPARROW_CUDA(cudaMalloc(&x_, int64_t{kLinearSmallRows} * in * 2));
    SPARROW_CUDA(cudaMalloc(&result_, (int64_t{kLinearSmallRows} * out + kGuard) * 4));
    SPARROW_CUDA(cudaMalloc(&sums_, int64_t{kLinearSmallRows} * out * 8));
    SPARROW_CUDA(cudaMalloc(&sizes_, int64_t{kLinearSmallRows} * out * 8));
    fill<<<512, 256>>>(w_, int64_t{out} * in, 1);
    fill<<<512, 256>>>(x_, int64_t{kLinearSmallRows} * in, 2);
  }
  void TearDown() override {
    for (void* data : {static_cast<void*>(w_), static_cast<void*>(x_), result_, static_cast<void*>(sums_),
                       static_cast<void*>(sizes_)})
      SPARROW_CUDA(cudaFree(data));
  }

  template <typename T>
  std::vector<T> run(int rows) {
    const auto [out, in] = GetParam();
    SPARROW_CUDA(cudaMemset(result_, 0xff, (int64_t{kLinearSmallRows} * out + kGuard) * 4));
    linear_small(bf16_matrix(w_, out, in), x_, static_cast<T*>(result_), rows, nullptr);
    std::vector<T> host(size_t(rows) * out + kGuard);
    SPARROW_CUDA(cudaMemcpy(host.data(), result_, host.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }

  __nv_bfloat16 *w_ = nullptr, *x_ = nullptr;
  void* result_ = nullptr;
  double *sums_ = nullptr, *sizes_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Shapes, LinearSmallTest,
                         testing::Values(Case{16, 64}, Case{320, 128}, Case{1408, 6144}, Case{6144, 1024},
                                         Case{24, 192}, Case{1000, 4096}, Case{8192, 1024}, Case{25008, 6144},
                                         Case{6144, 1536}),
                         [](const auto& info) {
                           return std::to_string(info.param.out) + "x" + std::to_string(info.param.in);
                         });

TEST_P(LinearSmallTest, AgreesWithTheReference) {
  const auto [out, in] = GetParam();
  for (const int rows : {1, 2, 7, 8, 9, 15, 16, 17, 32, 33, 63, 64}) {
    const int64_t count = int64_t{rows} * out;
    reference<<<(count + 7) / 8, 256>>>(w_, x_, sums_, sizes_, rows, out, in);
    std::vector<double> sums(count), sizes(count);
    SPARROW_CUDA(cudaMemcpy(sums.data(), sums_, count * 8, cudaMemcpyDeviceToHost));
    SPARROW_CUDA(cudaMemcpy(sizes.data(), sizes_, count * 8, cudaMemcpyDeviceToHost));
    const std::vector<float> f32 = run<float>(rows);
    const std::vector<__nv_bfloat16> bf16 = run<__nv_bfloat16>(rows);
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_NEAR(f32[i], sums[i], kF32Tolerance * sizes[i]) << rows << " rows, element " << i;
      ASSERT_NEAR(__bfloat162float(bf16[i]), sums[i],
                  kF32Tolerance * sizes[i] + kBf16Rounding * std::abs(sums[i]))
          << rows << " rows, element " << i;
    }
    for (int i = 0; i < kGuard; ++i) {
      uint32_t bits;
      std::memcpy(&bits, &f32[count + i], 4);
      ASSERT_EQ(bits, 0xffffffffu) << rows << " rows";
      ASSERT_EQ(__bfloat16_as_ushort(bf16[count + i]), 0xffff) << rows << " rows";
    }
  }
}

TEST_P(LinearSmallTest, RepeatsItsBits) {
  for (const int rows : {1, 16, 32, 64}) {
    const std::vector<float> first = run<float>(rows);
    for (int i = 0; i < 5; ++i)
      EXPECT_EQ(std::memcmp(first.data(), run<float>(rows).data(), first.size() * 4), 0) << rows << " rows";
  }
}

}  // namespace
}  // namespace sparrow::ops::cuda
