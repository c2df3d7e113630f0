// SPDX-License-Identifier: Apache-2.0
// What a GPU does with rows that NCCL brought, against the host, to the bit.
#include "model/cuda/exchange/row_kernels.h"

#include <gtest/gtest.h>

#include <cstring>

#include "comm/tree_sum.h"
#include "cuda/comm/peer_rows.h"
#include "cuda/device_array.h"
#include "device/cuda/stream.h"

namespace sparrow::test {
namespace {

constexpr float kEps = 1e-6f;

// What arrays are made with goes to another stream than what the tests launch.
void wait_for_arrays() {
  SPARROW_CUDA(cudaDeviceSynchronize());
}

struct Case {
  int sources, hidden;
  bool f32;
};
class RowKernelsOf : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Sources, RowKernelsOf,
                         ::testing::Values(Case{1, 64, true}, Case{2, 256, false}, Case{4, 1024, true},
                                           Case{8, 6144, false}, Case{8, 6144, true}, Case{4, 6144, false},
                                           Case{8, 8192, true}, Case{2, 8192, false}));

// All sources' rows, one after the other, in the form in which they are sent.
std::vector<std::byte> parts_of(const Rows& input, bool f32) {
  std::vector<std::byte> bytes;
  for (const std::vector<float>& rows : input.partial) {
    const std::vector<Bf16> rounded = as_bf16(rows);
    const void* const from = f32 ? static_cast<const void*>(rows.data()) : rounded.data();
    const auto* const first = static_cast<const std::byte*>(from);
    bytes.insert(bytes.end(), first, first + rows.size() * (f32 ? sizeof(float) : sizeof(Bf16)));
  }
  return bytes;
}

::testing::AssertionResult same_bits(const std::vector<Bf16>& got, const std::vector<BFloat16>& want,
                                     size_t first) {
  return std::memcmp(got.data() + first, want.data(), want.size() * sizeof(Bf16)) == 0
             ? ::testing::AssertionSuccess()
             : ::testing::AssertionFailure() << "other bits";
}

TEST_P(RowKernelsOf, AddUpAndNormaliseAsTheHostDoes) {
  const auto [sources, hidden, f32] = GetParam();
  const Stream stream;
  CudaRowKernels kernels(hidden, kEps, stream.get());
  uint32_t seed = 1;
  for (const int rows : {1, 2, 17, 200})
    for (const bool with_residual : {false, true}) {
      const Rows input(sources, rows, hidden, f32, ++seed);
      const size_t count = size_t(rows) * hidden;
      const DeviceArray<std::byte> parts(parts_of(input, f32));
      const DeviceArray<Bf16> residual(as_bf16(input.residual)), weight(as_bf16(input.weight)), out(count),
          residual_out(count);
      const DeviceArray<float> sums(count);
      const PartRows from{parts.data(), f32, sources, rows};
      wait_for_arrays();
      kernels.norm(from, {.residual = with_residual ? residual.data() : nullptr,
                          .residual_out = residual_out.data(),
                          .weight = weight.data(),
                          .out = out.data()});
      kernels.sum(from, sums.data());
      const std::vector<Bf16> normed = out.download(), kept = residual_out.download();
      for (int row = 0; row < rows; ++row) {
        const auto want = input.sum(row, {0, sources}, with_residual);
        ASSERT_TRUE(same_bits(kept, want, size_t(row) * hidden)) << rows << " rows, row " << row;
        ASSERT_TRUE(same_bits(normed, input.norm(want, kEps), size_t(row) * hidden)) << row;
      }
      std::vector<const float*> at;
      for (const auto& part : input.partial) at.push_back(part.data());
      std::vector<float> tree(count);
      tree_sum(at, static_cast<int64_t>(count), tree.data());
      ASSERT_EQ(std::memcmp(sums.download().data(), tree.data(), count * sizeof(float)), 0) << rows;
    }
}

// The residual may be where its sum goes, and need not be wanted.
TEST(RowKernels, TakeTheResidualInPlace) {
  constexpr int kSources = 4, kRows = 3, kHidden = 256;
  const Rows input(kSources, kRows, kHidden, true, 7);
  const Stream stream;
  CudaRowKernels kernels(kHidden, kEps, stream.get());
  const DeviceArray<std::byte> parts(parts_of(input, true));
  const DeviceArray<Bf16> residual(as_bf16(input.residual)), weight(as_bf16(input.weight)),
      out(kRows * kHidden), again(kRows * kHidden);
  const PartRows from{parts.data(), true, kSources, kRows};
  wait_for_arrays();
  kernels.norm(from, {.residual = residual.data(), .weight = weight.data(), .out = again.data()});
  kernels.norm(from, {.residual = residual.data(),
                      .residual_out = residual.data(),
                      .weight = weight.data(),
                      .out = out.data()});
  const std::vector<Bf16> first = again.download(), second = out.download(), kept = residual.download();
  EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(Bf16)), 0);
  for (int row = 0; row < kRows; ++row)
    EXPECT_TRUE(same_bits(kept, input.sum(row, {0, kSources}, true), size_t(row) * kHidden));
}

TEST(RowKernels, PickAndCopyRows) {
  constexpr int kRows = 5, kHidden = 64;
  std::vector<float> numbers;
  for (int i = 0; i < kRows * kHidden; ++i) numbers.push_back(static_cast<float>(i % 251));
  const Stream stream;
  CudaRowKernels kernels(kHidden, kEps, stream.get());
  const DeviceArray<Bf16> rows(as_bf16(numbers)), picked(3 * kHidden), wide(kRows * 2 * kHidden);
  const DeviceArray<int32_t> list(std::vector<int32_t>{4, 0, 2});
  wait_for_arrays();
  kernels.pick(rows.data(), kRows, list.data(), 3, picked.data());
  constexpr size_t kBytes = kHidden * sizeof(Bf16);
  kernels.copy(wide.data() + kHidden, 2 * kBytes, rows.data(), kBytes, kBytes, kRows);
  const std::vector<Bf16> got = picked.download(), spread = wide.download();
  for (int c = 0; c < kHidden; ++c) {
    EXPECT_EQ(static_cast<float>(got[size_t(c)]), numbers[size_t(4 * kHidden + c)]);
    EXPECT_EQ(static_cast<float>(got[size_t(2 * kHidden + c)]), numbers[size_t(2 * kHidden + c)]);
    EXPECT_EQ(static_cast<float>(spread[size_t(3 * 2 * kHidden + kHidden + c)]),
              numbers[size_t(3 * kHidden + c)]);
  }
}

}  // namespace
}  // namespace sparrow::test
