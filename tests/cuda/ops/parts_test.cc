// SPDX-License-Identifier: Apache-2.0
// Sums in parts on the device: whoever holds some of a matrix' columns, or rows, gets the bits of who holds
// it whole.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>

#include "cuda/device_array.h"
#include "cuda/ops/mx_matrix.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/parts/part_rows.h"
#include "ops/cuda/rows.h"

namespace sparrow::ops::cuda {
namespace {

using test::DeviceArray;
using Bf16 = __nv_bfloat16;

constexpr int kParts = 8;

std::vector<Bf16> random_rows(int rows, int columns, uint32_t seed, float size = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> pick(-size, size);
  std::vector<Bf16> x(static_cast<size_t>(rows) * static_cast<size_t>(columns));
  for (auto& value : x) value = Bf16(pick(random));
  return x;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// A matrix as bytes, in blocks: cells, or bf16 numbers one by one.
struct HostMatrix {
  MatrixFormat format;
  int rows, cols;
  std::vector<std::byte> bytes;

  int block_rows() const { return is_mx(format) ? kCellRows : 1; }
  int block_cols() const { return is_mx(format) ? kCellColumns : 1; }
  size_t block_bytes() const {
    return is_mx(format) ? static_cast<size_t>(cell_bytes(format)) : sizeof(Bf16);
  }

  HostMatrix part(int first_row, int part_rows, int first_col, int part_cols) const {
    HostMatrix m{format, part_rows, part_cols, {}};
    const size_t line = cols / block_cols() * block_bytes(), width = part_cols / block_cols() * block_bytes();
    for (int r = first_row / block_rows(); r < (first_row + part_rows) / block_rows(); ++r) {
      const auto begin =
          bytes.begin() + static_cast<std::ptrdiff_t>(r * line + first_col / block_cols() * block_bytes());
      m.bytes.insert(m.bytes.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
    }
    return m;
  }
};

HostMatrix random_matrix(MatrixFormat format, int rows, int cols) {
  HostMatrix m{format, rows, cols, {}};
  const auto set = [&](const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    m.bytes.assign(bytes.begin(), bytes.end());
  };
  if (is_mx(format))
    set(random_mx_matrix(format, rows, cols, 3, 0.05f).cells);
  else
    set(random_rows(rows, cols, 3, 0.05f));
  return m;
}

class PartProducts : public ::testing::TestWithParam<MatrixFormat> {
 protected:
  static constexpr int kN = 768, kK = 1024;
  const HostMatrix whole = random_matrix(GetParam(), kN, kK);
  const DeviceArray<std::byte> workspace{kProductWorkspaceBytes};
  const DeviceArray<Bf16> scratch{size_t{kN} * kK};

  std::unique_ptr<Gemm> gemm() const {
    std::unique_ptr<Gemm> made = Gemm::create(/*batch_invariant=*/true).value();
    made->set_workspace(workspace.data(), scratch.data());
    return made;
  }

  // With a Gemm of its own, as a rank has.
  std::vector<float> in_parts(const HostMatrix& m, const std::vector<Bf16>& x, int rows, int parts) const {
    const DeviceArray<std::byte> values(m.bytes);
    const DeviceArray<Bf16> x_device(x);
    const DeviceMatrix w{.format = m.format, .values = values.data(), .rows = m.rows, .cols = m.cols};
    const size_t numbers = static_cast<size_t>(rows) * static_cast<size_t>(m.rows);
    std::vector<std::unique_ptr<DeviceArray<float>>> slots;
    PartTree tree{.parts = parts};
    for (int s = 0; s < tree_slots(parts); ++s) {
      slots.push_back(std::make_unique<DeviceArray<float>>(numbers));
      tree.slots[s] = slots.back()->data();
    }
    const auto product = gemm();
    product->tune_parts(w, parts);
    product->run(w, rows, x_device.data(), tree, nullptr);
    return slots[0]->download();
  }

  template <typename Out>
  std::vector<Out> plain(const HostMatrix& m, const std::vector<Bf16>& x, int rows) const {
    const DeviceArray<std::byte> values(m.bytes);
    const DeviceArray<Bf16> x_device(x);
    const DeviceArray<Out> out(static_cast<size_t>(rows) * static_cast<size_t>(m.rows));
    const DeviceMatrix w{.format = m.format, .values = values.data(), .rows = m.rows, .cols = m.cols};
    const auto product = gemm();
    product->tune(std::span(&w, 1), rows, x_device.data(), out.data(), nullptr);
    product->run(w, rows, x_device.data(), out.data(), nullptr);
    return out.download();
  }
};
INSTANTIATE_TEST_SUITE_P(Formats, PartProducts,
                         ::testing::Values(MatrixFormat::kBF16, MatrixFormat::kMxfp8, MatrixFormat::kMxfp4));

std::vector<Bf16> columns_of(const std::vector<Bf16>& x, int rows, int cols, int first, int count) {
  std::vector<Bf16> part;
  for (int r = 0; r < rows; ++r) {
    const auto begin = x.begin() + int64_t{r} * cols + first;
    part.insert(part.end(), begin, begin + count);
  }
  return part;
}

TEST_P(PartProducts, OfRanksAddUpToTheWhole) {
  for (const int rows : {1, 5, 64, 130, 700}) {
    const std::vector<Bf16> x = random_rows(rows, kK, static_cast<uint32_t>(rows));
    const std::vector<float> truth = in_parts(whole, x, rows, kParts);
    for (const int ranks : {2, 4, 8}) {
      std::vector<std::vector<float>> sums;
      for (int r = 0; r < ranks; ++r) {
        const int first = r * kK / ranks, count = kK / ranks;
        sums.push_back(in_parts(whole.part(0, kN, first, count), columns_of(x, rows, kK, first, count), rows,
                                kParts / ranks));
      }
      for (int apart = 1; apart < ranks; apart *= 2)
        for (int r = 0; r < ranks; r += 2 * apart)
          for (size_t i = 0; i < truth.size(); ++i) sums[r][i] += sums[r + apart][i];
      EXPECT_TRUE(same_bits(sums[0], truth)) << ranks << " ranks, " << rows << " rows";
    }
  }
}

TEST_P(PartProducts, AreTheProductUpToRounding) {
  constexpr int kRows = 40;
  const std::vector<Bf16> x = random_rows(kRows, kK, 9);
  const std::vector<float> parts = in_parts(whole, x, kRows, kParts), all = plain<float>(whole, x, kRows);
  double difference = 0, size = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    difference += double{parts[i] - all[i]} * double{parts[i] - all[i]};
    size += double{all[i]} * double{all[i]};
  }
  EXPECT_LT(difference, 1e-11 * size);
}

TEST_P(PartProducts, RowsOfAMatrixHaveTheBitsOfTheWhole) {
  const auto compare = [&]<typename Out>(Out) {
    for (const int rows : {1, 64, 300}) {
      const std::vector<Bf16> x = random_rows(rows, kK, static_cast<uint32_t>(rows));
      const std::vector<Out> truth = plain<Out>(whole, x, rows);
      for (const int ranks : {2, 4, 8})
        for (const int rank : {0, ranks - 1}) {
          const int count = kN / ranks, first = rank * count;
          const std::vector<Out> got = plain<Out>(whole.part(first, count, 0, kK), x, rows);
          std::vector<Out> want;
          for (int r = 0; r < rows; ++r) {
            const auto begin = truth.begin() + int64_t{r} * kN + first;
            want.insert(want.end(), begin, begin + count);
          }
          EXPECT_TRUE(same_bits(got, want)) << rank << " of " << ranks << " ranks, " << rows << " rows";
        }
    }
  };
  compare(float{});
  compare(Bf16{});
}

TEST(PartRows, SumsAreRoundedOnceWithTheResidualAndNormalised) {
  for (const auto& [rows, hidden] : {std::pair{1, 64}, {7, 1024}, {300, 6144}}) {
    const std::vector<Bf16> residual = random_rows(rows, hidden, 1, 4), weight = random_rows(1, hidden, 2);
    std::mt19937 random(3);
    std::normal_distribution<float> pick(0, 0.3f);
    std::vector<float> sums(residual.size());
    for (float& sum : sums) sum = pick(random);
    std::vector<Bf16> added(residual.size());
    for (size_t i = 0; i < sums.size(); ++i) added[i] = Bf16(__bfloat162float(residual[i]) + sums[i]);

    const DeviceArray<float> sums_device(sums);
    const DeviceArray<Bf16> residual_device(residual), weight_device(weight), added_device(added),
        out(added.size()), want(added.size());
    rms_norm({added_device.data(), weight_device.data(), want.data(), rows, hidden, 1e-6f}, nullptr);
    sum_norm({.sums = sums_device.data(),
              .residual = residual_device.data(),
              .residual_out = residual_device.data(),
              .weight = weight_device.data(),
              .out = out.data(),
              .rows = rows,
              .hidden = hidden,
              .eps = 1e-6f},
             nullptr);
    EXPECT_TRUE(same_bits(residual_device.download(), added));
    EXPECT_TRUE(same_bits(out.download(), want.download()));
  }
}

TEST(PartRows, AListPicksRowsAndANegativeOneGivesZeros) {
  constexpr int kHidden = 128;
  const std::vector<Bf16> residual = random_rows(3, kHidden, 1), weight = random_rows(1, kHidden, 2);
  const DeviceArray<float> sums(std::vector<float>(3 * kHidden, 0.0f));
  const DeviceArray<Bf16> residual_device(residual), weight_device(weight), out(3 * kHidden),
      want(3 * kHidden);
  const DeviceArray<int32_t> list(std::vector<int32_t>{2, -1, 0});
  rms_norm({residual_device.data(), weight_device.data(), want.data(), 3, kHidden, 1e-6f}, nullptr);
  sum_norm({.sums = sums.data(),
            .residual = residual_device.data(),
            .row_list = list.data(),
            .weight = weight_device.data(),
            .out = out.data(),
            .rows = 3,
            .hidden = kHidden,
            .eps = 1e-6f},
           nullptr);
  const std::vector<Bf16> got = out.download(), all = want.download();
  for (int c = 0; c < kHidden; ++c) {
    EXPECT_EQ(__bfloat162float(got[c]), __bfloat162float(all[2 * kHidden + c]));
    EXPECT_EQ(__bfloat162float(got[kHidden + c]), 0);
    EXPECT_EQ(__bfloat162float(got[2 * kHidden + c]), __bfloat162float(all[c]));
  }
  EXPECT_TRUE(same_bits(residual_device.download(), residual));
}

TEST(PartRows, AnEmbeddingIsTheRowAsF32OrZeros) {
  constexpr int kHidden = 128;
  const std::vector<Bf16> table = random_rows(4, kHidden, 1);
  const DeviceArray<Bf16> table_device(table);
  const DeviceArray<int32_t> ids(std::vector<int32_t>{11, 9, 14, 10});
  const DeviceArray<float> out(4 * kHidden);
  embed_part({.ids = ids.data(),
              .table = table_device.data(),
              .out = out.data(),
              .rows = 4,
              .hidden = kHidden,
              .first_vocab_row = 10,
              .vocab_rows = 4},
             nullptr);
  const std::vector<float> got = out.download();
  for (int c = 0; c < kHidden; ++c) {
    EXPECT_EQ(got[c], __bfloat162float(table[kHidden + c]));
    EXPECT_EQ(got[kHidden + c], 0);
    EXPECT_EQ(got[2 * kHidden + c], 0);
    EXPECT_EQ(got[3 * kHidden + c], __bfloat162float(table[c]));
  }
}

}  // namespace
}  // namespace sparrow::ops::cuda
