// SPDX-License-Identifier: Apache-2.0
// Codes and scales on their way into cells: every code with every scale, places, and what is refused.
#include "model/cuda/pack/pack.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <vector>

#include "cuda/device_array.h"
#include "cuda/ops/mx_matrix.h"
#include "ops/cuda/mx/expand.h"

namespace sparrow {
namespace {

using namespace ops::cuda;
using test::DeviceArray;

// A tensor as files have it.
struct Stored {
  MatrixFormat format;
  int64_t rows, columns;
  std::vector<uint8_t> codes, scales;

  Stored(MatrixFormat format, int64_t rows, int64_t columns)
      : format(format),
        rows(rows),
        columns(columns),
        codes(static_cast<size_t>(rows * columns / values_per_element(format))),
        scales(static_cast<size_t>(rows * columns / kScaleGroup), 127) {}

  uint32_t code(int64_t row, int64_t column) const {
    const auto at = static_cast<size_t>(row * columns + column);
    return format == MatrixFormat::kMxfp8 ? codes[at] : codes[at / 2] >> (at % 2 * 4) & 15;
  }
  uint8_t& scale(int64_t row, int64_t column) {
    return scales[static_cast<size_t>((row * columns + column) / kScaleGroup)];
  }
  uint8_t scale(int64_t row, int64_t column) const {
    return scales[static_cast<size_t>((row * columns + column) / kScaleGroup)];
  }
  BFloat16 value(int64_t row, int64_t column) const {
    const uint32_t c = code(row, column);
    const float value =
        format == MatrixFormat::kMxfp8 ? e4m3_to_float(static_cast<uint8_t>(c)) : e2m1_value(c);
    return to_bf16(value * e8m0_to_float(scale(row, column)));
  }
  void fill_random(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (uint8_t& byte : codes) {
      byte = static_cast<uint8_t>(random());
      if (format == MatrixFormat::kMxfp8 && (byte & 0x7f) == 0x7f) byte ^= 1;
    }
    for (uint8_t& byte : scales)
      byte = static_cast<uint8_t>(random() % static_cast<uint64_t>(max_cell_scale(format) + 1));
  }
};

// Packs tensors into one matrix, as loading does.
class Matrix {
 public:
  Matrix(MatrixFormat format, int64_t rows, int64_t columns, uint8_t before)
      : format_(format),
        rows_(rows),
        columns_(columns),
        memory_(
            std::vector<uint8_t>(static_cast<size_t>(is_mx(format) ? cell_matrix_bytes(format, rows, columns)
                                                                   : rows * columns * 2),
                                 before)) {}

  PackTarget target(const Stored& tensor) const {
    return {.out = memory_.data(),
            .format = format_,
            .columns = columns_,
            .row_run = INT64_MAX,
            .col_run = INT64_MAX,
            .num_rows = tensor.rows,
            .num_cols = tensor.columns};
  }
  void pack(const Stored& tensor, const PackTarget& target, uint64_t tag = 0) {
    const DeviceArray<uint8_t> codes(tensor.codes), scales(tensor.scales);
    const PackSource source = {tensor.format, codes.data(), scales.data(), {faults_.data(), tag}};
    SPARROW_CUDA(launch_pack(target, source, nullptr));
    SPARROW_CUDA(cudaDeviceSynchronize());
  }
  std::vector<uint8_t> bytes() const { return memory_.download(); }
  unsigned long long first_fault() const { return faults_.download()[0]; }

  std::vector<BFloat16> expanded() const {
    const DeviceArray<BFloat16> out(static_cast<size_t>(rows_ * columns_));
    const DeviceMatrix matrix = {format_, memory_.data(), static_cast<int>(rows_),
                                 static_cast<int>(columns_)};
    if (!is_mx(format_))
      SPARROW_CUDA(cudaMemcpy(out.data(), memory_.data(), out.size() * 2, cudaMemcpyDeviceToDevice));
    else
      expand(matrix, reinterpret_cast<__nv_bfloat16*>(out.data()), nullptr);
    return out.download();
  }

 private:
  const MatrixFormat format_;
  const int64_t rows_, columns_;
  DeviceArray<uint8_t> memory_;
  DeviceArray<unsigned long long> faults_{std::vector<unsigned long long>{PackFaults::kNone}};
};

class Pack : public ::testing::TestWithParam<MatrixFormat> {
 protected:
  const MatrixFormat format = GetParam();
};

// One row for each scale, one column for each code.
TEST_P(Pack, KeepsEveryCodeWithEveryScale) {
  const int64_t rows = (max_cell_scale(format) + 16) / 16 * 16;
  Stored tensor(format, rows, 256);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < 256; ++i) {
      const uint8_t byte = static_cast<uint8_t>(format == MatrixFormat::kMxfp8 && (i & 0x7f) == 0x7f ? 0 : i);
      if (format == MatrixFormat::kMxfp8)
        tensor.codes[static_cast<size_t>(row * 256 + i)] = byte;
      else if (i % 2 == 0)  // all pairs take two rows; singles come in every place of a word
        tensor.codes[static_cast<size_t>(row * 128 + i / 2)] = static_cast<uint8_t>(row % 2 * 128 + i / 2);
      tensor.scale(row, i) = static_cast<uint8_t>(std::min<int64_t>(row, max_cell_scale(format)));
    }
  // Whatever was there before: every bit is written.
  std::vector<uint8_t> cells;
  for (const uint8_t before : {0x00, 0xff}) {
    Matrix matrix(format, rows, 256, before);
    matrix.pack(tensor, matrix.target(tensor));
    EXPECT_EQ(matrix.first_fault(), PackFaults::kNone);
    const std::vector<BFloat16> got = matrix.expanded();
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < 256; ++column)
        ASSERT_EQ(got[static_cast<size_t>(row * 256 + column)].bits, tensor.value(row, column).bits)
            << "scale " << int{tensor.scale(row, column)} << ", code " << tensor.code(row, column);
    EXPECT_TRUE(cells.empty() || matrix.bytes() == cells);
    cells = matrix.bytes();
  }
}

// Gate and up by eights, heads with gaps between them, a rank's rows in two goes: what belongs to nobody
// stays.
TEST_P(Pack, PutsRowsAndColumnsWhereTheyBelong) {
  constexpr int64_t kRows = 64, kColumns = 256;
  Stored first(format, 24, 128), second(format, 24, 128);
  first.fill_random(1);
  second.fill_random(2);
  Matrix matrix(format, kRows, kColumns, 0);
  PackTarget target = matrix.target(first);
  target.row_run = 8, target.row_run_stride = 16;
  target.col_run = 32, target.col_run_stride = 64;
  target.matrix_row = 8;
  matrix.pack(first, target);
  target.matrix_row = 16;
  matrix.pack(second, target);
  const std::vector<BFloat16> got = matrix.expanded();
  for (int64_t row = 0; row < kRows; ++row)
    for (int64_t column = 0; column < kColumns; ++column) {
      BFloat16 expected{0};
      const int64_t c = column / 64 * 32 + column % 32;
      if (column % 64 < 32 && row >= 8 && row < 56)
        expected = (row / 8 % 2 == 1 ? first : second).value((row - 8) / 16 * 8 + row % 8, c);
      // Nothing says that a zero's sign stays where no code is.
      ASSERT_EQ(got[static_cast<size_t>(row * kColumns + column)].bits, expected.bits)
          << row << ", " << column;
    }
}

TEST_P(Pack, ExpandsForAMatrixOfAnotherFormat) {
  Stored tensor(format, 32, 96);
  tensor.fill_random(3);
  Matrix matrix(MatrixFormat::kBF16, 32, 96, 0xff);
  matrix.pack(tensor, matrix.target(tensor));
  EXPECT_EQ(matrix.first_fault(), PackFaults::kNone);
  const std::vector<BFloat16> got = matrix.expanded();
  for (int64_t i = 0; i < 32 * 96; ++i)
    ASSERT_EQ(got[static_cast<size_t>(i)].bits, tensor.value(i / 96, i % 96).bits) << i;
}

TEST_P(Pack, FindsTheFirstGroupThatCannotBe) {
  const auto fault_of = [&](const auto& spoil) {
    Stored tensor(format, 32, 128);
    tensor.fill_random(4);
    spoil(tensor);
    Matrix matrix(format, 32, 128, 0);
    matrix.pack(tensor, matrix.target(tensor), /*tag=*/uint64_t{5} << 40);
    return matrix.first_fault();
  };
  const unsigned long long tag = 5ull << 40;
  EXPECT_EQ(fault_of([](Stored&) {}), PackFaults::kNone);
  EXPECT_EQ(fault_of([](Stored& t) { t.scale(7, 40) = 255; }), tag + 7 * 4 + 1);
  EXPECT_EQ(fault_of([&](Stored& t) { t.scale(31, 127) = static_cast<uint8_t>(max_cell_scale(format) + 1); }),
            tag + 31 * 4 + 3);
  EXPECT_EQ(fault_of([&](Stored& t) { t.scale(0, 0) = static_cast<uint8_t>(max_cell_scale(format)); }),
            PackFaults::kNone);
  EXPECT_EQ(fault_of([&](Stored& t) { t.scale(9, 0) = 255, t.scale(4, 96) = 200; }), tag + 4 * 4 + 3);
  if (format != MatrixFormat::kMxfp8) return;
  for (const uint8_t nan : {0x7f, 0xff})
    for (const int64_t column : {0, 31, 64, 127})
      EXPECT_EQ(fault_of([&](Stored& t) { t.codes[static_cast<size_t>(12 * 128 + column)] = nan; }),
                tag + static_cast<unsigned long long>(12 * 4 + column / 32));
}

INSTANTIATE_TEST_SUITE_P(Formats, Pack, ::testing::Values(MatrixFormat::kMxfp8, MatrixFormat::kMxfp4),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace sparrow
