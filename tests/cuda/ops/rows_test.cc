// SPDX-License-Identifier: Apache-2.0
// The row operations on the device against the CPU's scalar reference: equal to the bit, since both sum in
// double and round at the same points.
#include "ops/cuda/rows.h"

#include <gtest/gtest.h>

#include "cuda/device_array.h"
#include "ops/ops_cases.h"

namespace sparrow::ops::cuda {
namespace {

using test::DeviceArray;

constexpr float kEps = 1e-6f;

std::vector<__nv_bfloat16> values_of(const Owned& x) {
  std::vector<__nv_bfloat16> values(x.bytes.size() / 2);
  std::memcpy(values.data(), x.bytes.data(), x.bytes.size());
  return values;
}

::testing::AssertionResult same_bits(const DeviceArray<__nv_bfloat16>& got, const Owned& want) {
  const std::vector<__nv_bfloat16> host = got.download();
  const auto* const a = reinterpret_cast<const uint16_t*>(host.data());
  const auto* const b = reinterpret_cast<const uint16_t*>(want.bytes.data());
  for (size_t i = 0; i < want.bytes.size() / 2; ++i)
    if (a[i] != b[i])
      return ::testing::AssertionFailure() << "row " << i / want.t.cols() << ", column " << i % want.t.cols()
                                           << ": got " << std::hex << a[i] << ", want " << b[i];
  return ::testing::AssertionSuccess();
}

struct Shape {
  int rows, hidden;
};

class RowsOnDevice : public ::testing::TestWithParam<Shape> {
 protected:
  std::mt19937 rng{7};
  const int rows = GetParam().rows, hidden = GetParam().hidden;
  Owned x = random_tensor(rng, DType::kBF16, rows, hidden, 3.0f);
  Owned delta = random_tensor(rng, DType::kBF16, rows, hidden, 0.5f);
  Owned weight = random_tensor(rng, DType::kBF16, 1, hidden, 0.3f);
  Owned want{DType::kBF16, rows, hidden};
  DeviceArray<__nv_bfloat16> x_device{values_of(x)}, delta_device{values_of(delta)},
      weight_device{values_of(weight)}, out{size_t(rows) * hidden};
};

TEST_P(RowsOnDevice, RmsNormEqualsTheReference) {
  reference::rms_norm(x.t, weight.t, kEps, want.t);
  rms_norm({x_device.data(), weight_device.data(), out.data(), rows, hidden, kEps}, nullptr);
  EXPECT_TRUE(same_bits(out, want));
}

TEST_P(RowsOnDevice, AddRmsNormEqualsTheReferenceAndMayWriteOverDelta) {
  add_rms_norm(
      {x_device.data(), delta_device.data(), weight_device.data(), delta_device.data(), rows, hidden, kEps},
      nullptr);
  reference::add_rms_norm(x.t, delta.t, weight.t, kEps, want.t);
  EXPECT_TRUE(same_bits(x_device, x));
  EXPECT_TRUE(same_bits(delta_device, want));
}

TEST_P(RowsOnDevice, NormsRoundTheirRowsOnTheWay) {
  const DeviceArray<uint8_t> codes(out.size());
  const DeviceArray<float> scales(rows);
  const E4m3Rows rounded{codes.data(), scales.data()};
  // The scale is that of the largest number before it was rounded to bf16.
  const auto expect_rounded = [&] {
    const std::vector<__nv_bfloat16> normed = values_of(want);
    const std::vector<uint8_t> got = codes.download();
    const std::vector<float> got_scales = scales.download();
    for (int r = 0; r < rows; ++r) {
      float largest = 0;
      for (int c = 0; c < hidden; ++c)
        largest = std::max(largest, std::abs(float(normed[size_t(r) * hidden + c])));
      const float scale = got_scales[r];
      ASSERT_NEAR(scale, largest / 448, largest / 448 / 128) << "row " << r;
      for (int c = 0; c < hidden; ++c) {
        const float number = float(normed[size_t(r) * hidden + c]);
        const uint8_t code = got[size_t(r) * hidden + c / 32 * 32 + e4m3_place(c % 32)];
        ASSERT_NEAR(e4m3_to_float(code) * scale, number,
                    1.01f * std::max(std::abs(number) / 16, scale * 0x1p-10f))
            << "row " << r << ", column " << c;
      }
    }
  };
  reference::rms_norm(x.t, weight.t, kEps, want.t);
  rms_norm({x_device.data(), weight_device.data(), out.data(), rows, hidden, kEps, rounded}, nullptr);
  EXPECT_TRUE(same_bits(out, want));
  expect_rounded();

  // Without the rows themselves.
  add_rms_norm(
      {x_device.data(), delta_device.data(), weight_device.data(), nullptr, rows, hidden, kEps, rounded},
      nullptr);
  reference::add_rms_norm(x.t, delta.t, weight.t, kEps, want.t);
  EXPECT_TRUE(same_bits(x_device, x));
  expect_rounded();
}

TEST_P(RowsOnDevice, FinalNormTakesTheWantedRowsAndLeavesTheResidual) {
  const int wanted = std::max(rows / 3, 1) + 1;
  std::vector<int32_t> list(wanted);
  for (auto& row : list) row = static_cast<int32_t>(rng() % rows);
  list[wanted - 1] = -1;
  const DeviceArray<int32_t> list_device(list);
  const Owned before = copy_of(x);
  final_norm({x_device.data(), delta_device.data(), list_device.data(), weight_device.data(), out.data(),
              std::min(wanted, rows), hidden, kEps},
             nullptr);
  EXPECT_TRUE(same_bits(x_device, before));
  reference::add_rms_norm(x.t, delta.t, weight.t, kEps, want.t);
  const std::vector<__nv_bfloat16> got = out.download();
  for (int i = 0; i < std::min(wanted, rows); ++i) {
    // Zeros times a negative 1 + weight are -0: compared as numbers.
    if (list[i] < 0) {
      for (int c = 0; c < hidden; ++c) ASSERT_EQ(float(got[size_t(i) * hidden + c]), 0.0f);
      continue;
    }
    const char* const row = want.row(list[i]);
    ASSERT_EQ(std::memcmp(got.data() + size_t(i) * hidden, row, want.row_bytes()), 0) << "row " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, RowsOnDevice,
                         ::testing::Values(Shape{1, 128}, Shape{3, 192}, Shape{1, 6144}, Shape{64, 6144},
                                           Shape{265, 6144}, Shape{2000, 1024}, Shape{300, 8192},
                                           Shape{700, 128}, Shape{1200, 576}),
                         [](const auto& info) {
                           return std::to_string(info.param.rows) + "x" + std::to_string(info.param.hidden);
                         });

TEST(RowsOnDeviceTest, NormOfZerosAndOfNotANumber) {
  constexpr int kHidden = 256;
  std::vector<__nv_bfloat16> x(2 * kHidden, __nv_bfloat16(0.0f)), weight(kHidden, __nv_bfloat16(1.0f));
  x[kHidden + 3] = __nv_bfloat16(NAN);
  const DeviceArray<__nv_bfloat16> x_device(x), weight_device(weight);
  DeviceArray<__nv_bfloat16> out(x.size());
  rms_norm({x_device.data(), weight_device.data(), out.data(), 2, kHidden, kEps}, nullptr);
  const std::vector<__nv_bfloat16> got = out.download();
  for (int i = 0; i < kHidden; ++i) {
    EXPECT_EQ(float(got[i]), 0.0f);
    EXPECT_TRUE(std::isnan(float(got[kHidden + i])));
  }
}

TEST(RowsOnDeviceTest, EmbedGivesZerosForIdsOfOtherRanks) {
  constexpr int kHidden = 192, kFirst = 100, kVocabRows = 50;
  std::mt19937 rng(3);
  const Owned table = random_tensor(rng, DType::kBF16, kVocabRows, kHidden);
  const std::vector<int32_t> ids = {100, 149, 99, 150, -1, 0, 2147483647, -2147483647 - 1, 120, 120};
  const DeviceArray<int32_t> ids_device(ids);
  const DeviceArray<__nv_bfloat16> table_device(values_of(table));
  DeviceArray<__nv_bfloat16> out(ids.size() * kHidden);
  embed({ids_device.data(), table_device.data(), out.data(), static_cast<int>(ids.size()), kHidden, kFirst,
         kVocabRows},
        nullptr);
  const std::vector<__nv_bfloat16> got = out.download();
  for (size_t r = 0; r < ids.size(); ++r) {
    const bool ours = ids[r] >= kFirst && ids[r] < kFirst + kVocabRows;
    const std::vector<char> zeros(table.row_bytes(), 0);
    const char* const want = ours ? table.row(ids[r] - kFirst) : zeros.data();
    EXPECT_EQ(std::memcmp(got.data() + r * kHidden, want, table.row_bytes()), 0) << "id " << ids[r];
  }
}

TEST(RowsOnDeviceTest, EmbedTakesFeaturesWhereRowsNameThem) {
  constexpr int kHidden = 192;
  std::mt19937 rng(4);
  const Owned table = random_tensor(rng, DType::kBF16, 9, kHidden),
              features = random_tensor(rng, DType::kBF16, 5, kHidden);
  const std::vector<int32_t> ids = {3, 3, 8, 0, 100}, rows = {kNoFeature, 4, kOthersFeature, 0, 2};
  const DeviceArray<int32_t> ids_device(ids), rows_device(rows);
  const DeviceArray<__nv_bfloat16> table_device(values_of(table)), features_device(values_of(features));
  const DeviceArray<__nv_bfloat16> out(ids.size() * kHidden);
  embed({.ids = ids_device.data(),
         .table = table_device.data(),
         .out = out.data(),
         .rows = 5,
         .hidden = kHidden,
         .first_vocab_row = 0,
         .vocab_rows = 9,
         .features = features_device.data(),
         .feature_rows = rows_device.data()},
        nullptr);
  const std::vector<__nv_bfloat16> got = out.download();
  const std::vector<char> zeros(table.row_bytes(), 0);
  const char* const want[] = {table.row(3), features.row(4), zeros.data(), features.row(0), features.row(2)};
  for (size_t r = 0; r < ids.size(); ++r)
    EXPECT_EQ(std::memcmp(got.data() + r * kHidden, want[r], table.row_bytes()), 0) << "row " << r;
}

TEST(RowsOnDeviceTest, FeedIdsReplacesOnlyRowsWithASource) {
  std::vector<int32_t> sampled(300), source(1000), ids(1000), want(1000);
  std::mt19937 rng(5);
  for (auto& id : sampled) id = static_cast<int32_t>(rng() % 200064);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(i);
    source[i] = rng() % 3 == 0 ? -1 : static_cast<int32_t>(rng() % sampled.size());
    want[i] = source[i] < 0 ? ids[i] : sampled[source[i]];
  }
  const DeviceArray<int32_t> sampled_device(sampled), source_device(source);
  DeviceArray<int32_t> ids_device(ids);
  feed_ids({sampled_device.data(), source_device.data(), ids_device.data(), 1000}, nullptr);
  EXPECT_EQ(ids_device.download(), want);
}

}  // namespace
}  // namespace sparrow::ops::cuda
