// SPDX-License-Identifier: Apache-2.0
// Products with quantised matrices: the bits of the matrix that codes and scales stand for.
#include <algorithm>

#include "ops/ops_cases.h"

namespace sparrow::ops {
namespace {

constexpr MatrixFormat kMxFormats[] = {MatrixFormat::kMxfp8, MatrixFormat::kMxfp4};

TEST(Quantised, QuantisedWeightsGiveTheBitsOfTheirDequantisedMatrix) {
  for (const CpuIsa isa : vector_isas())
    for (const int64_t in : {32, 96, 1056})
      for (const DType activation : {DType::kBF16, DType::kF32}) {
        std::mt19937 rng(11);
        OwnedWeight weight = random_weight(rng, DType::kF8E4M3, 49, in);
        // Row 0: every code but NaN. The other rows leave out zeros and subnormals too, as most weights do.
        for (size_t i = 0; i < weight.values.bytes.size(); ++i) {
          const bool first_row = i < static_cast<size_t>(in);
          const size_t code = first_row ? i % 127 : 8 + i * 7 % 119;
          weight.values.bytes[i] = static_cast<char>(code | (i % 3 == 0 ? 0x80 : 0));
        }
        // Scales from one end of the range to the other appear, those that give subnormals left out.
        weight.scales.bytes[0] = 40;
        weight.scales.bytes.back() = static_cast<char>(200);
        const OwnedWeight exact = dequantised(weight.w, DType::kBF16);
        for (const int64_t rows : {1, 3, 8, 40}) {
          const Owned x = random_tensor(rng, activation, rows, in);
          const Owned a = multiply(isa, 2, x.t, weight.w, DType::kF32);
          const Owned b = multiply(isa, 2, x.t, exact.w, DType::kF32);
          ASSERT_TRUE(same_rows(a, 0, b, 0, rows)) << name_of(isa) << " in " << in << " rows " << rows;
        }
      }
}

TEST(Quantised, RandomCodesAndScalesGiveTheBitsOfTheirDequantisedMatrix) {
  for (const MatrixFormat format : kMxFormats)
    for (const CpuIsa isa : vector_isas())
      for (const int64_t in : {32, 96, 544, 2080})
        for (const DType activation : {DType::kBF16, DType::kF32}) {
          std::mt19937 rng(17);
          const OwnedWeight weight = random_weight(rng, format, 77, in);
          const OwnedWeight exact = dequantised(weight.w, DType::kBF16);
          for (const int64_t rows : {1, 2, 3, 8, 40}) {
            const Owned x = random_tensor(rng, activation, rows, in);
            const Owned a = multiply(isa, 2, x.t, weight.w, DType::kF32);
            const Owned b = multiply(isa, 2, x.t, exact.w, DType::kF32);
            ASSERT_TRUE(same_rows(a, 0, b, 0, rows))
                << name_of(format) << " on " << name_of(isa) << " in " << in << " rows " << rows;
          }
        }
}

// Every code but NaN, in every place that a byte has for it, with every scale that keeps all of them finite.
// MXFP8 has its normal codes again where nothing else is near, as most weights are.
OwnedWeight all_codes(MatrixFormat format) {
  const bool is_mxfp8 = format == MatrixFormat::kMxfp8;
  const int64_t columns = is_mxfp8 ? 512 : 64, scales = is_mxfp8 ? 247 : 253;
  OwnedWeight weight;
  weight.values = Owned(dtype_of(format), scales, columns / values_per_element(format));
  weight.scales = Owned(DType::kU8, scales, columns / 32);
  std::ranges::fill(weight.values.bytes, char{0});
  for (int64_t scale = 0; scale < scales; ++scale) {
    uint8_t* codes = static_cast<uint8_t*>(weight.values.t.data) + scale * weight.values.t.row_stride;
    for (int64_t k = 0; k < columns; ++k)
      if (is_mxfp8)
        codes[k] = static_cast<uint8_t>(k >= 256             ? (8 + k % 128 % 119) | (k & 0x80)
                                        : (k & 0x7f) == 0x7f ? 0
                                                             : k);
      else
        codes[k / 2] |= static_cast<uint8_t>((k < 32 ? k : k / 2) % 16 << (k % 2 * 4));
    std::fill_n(weight.scales.t.row<uint8_t>(scale), columns / 32, static_cast<uint8_t>(scale));
  }
  weight.w = {weight.values.t, weight.scales.t};
  return weight;
}

TEST(Quantised, EveryCodeWithEveryScaleIsItsNumberToTheBit) {
  for (const MatrixFormat format : kMxFormats) {
    const OwnedWeight weight = all_codes(format);
    for (const DType type : {DType::kF32, DType::kBF16}) {
      const OwnedWeight exact = dequantised(weight.w, type);
      // Rows that pick one column each: the product is that column, whatever shares its vector.
      const int64_t in = weight.w.in();
      Owned x(type, in, in);
      std::ranges::fill(x.bytes, char{0});
      for (int64_t k = 0; k < in; ++k) reference::store(x.t, k * in + k, 1.0f);
      for (const CpuIsa isa : vector_isas()) {
        const Owned a = multiply(isa, 2, x.t, weight.w, DType::kF32);
        const Owned b = multiply(isa, 2, x.t, exact.w, DType::kF32);
        ASSERT_TRUE(same_rows(a, 0, b, 0, in)) << name_of(format) << " on " << name_of(isa);
        for (int64_t k = 0; k < in; ++k)
          ASSERT_TRUE(same_rows(multiply(isa, 1, x.t.rows_at(k, 1), weight.w, DType::kF32), 0, b, k, 1))
              << name_of(format) << " on " << name_of(isa) << ", column " << k;
        if (type != DType::kF32) continue;
        for (int64_t o = 0; o < weight.w.out(); ++o)
          for (int64_t k = 0; k < in; ++k)
            ASSERT_EQ(a.t.row<float>(k)[o], reference::weight_at(weight.w, o, k))
                << name_of(format) << " on " << name_of(isa) << ", scale " << o << ", column " << k;
      }
    }
  }
}

// Rows are streamed eight at a time, and one that fast ways cannot take sends all of them another way: here
// all have one scale.
TEST(Quantised, EachScaleAloneIsItsNumberToTheBit) {
  for (const MatrixFormat format : kMxFormats)
    for (int scale = 0; scale <= 254; ++scale) {
      std::mt19937 rng(static_cast<unsigned>(scale));
      OwnedWeight weight = random_weight(rng, format, 16, 256);
      if (format == MatrixFormat::kMxfp8)
        for (char& code : weight.values.bytes) code = static_cast<char>(8 + rng() % 119 + rng() % 2 * 128);
      std::ranges::fill(weight.scales.bytes, static_cast<char>(scale));
      const OwnedWeight exact = dequantised(weight.w, DType::kBF16);
      const Owned x = random_tensor(rng, DType::kBF16, 3, 256);
      for (const CpuIsa isa : vector_isas())
        for (const int64_t rows : {1, 3})
          ASSERT_TRUE(same_rows(multiply(isa, 1, x.t.rows_at(0, rows), weight.w, DType::kF32), 0,
                                multiply(isa, 1, x.t.rows_at(0, rows), exact.w, DType::kF32), 0, rows))
              << name_of(format) << " on " << name_of(isa) << ", scale " << scale << ", rows " << rows;
    }
}

TEST(Quantised, NaNCodeOfAQuantisedWeightPoisonsItsOutputOnly) {
  std::mt19937 rng(16);
  OwnedWeight weight = random_weight(rng, DType::kF8E4M3, 20, 64);
  // Normal codes everywhere else: the NaN alone has to be noticed.
  std::fill(weight.values.bytes.begin(), weight.values.bytes.end(), static_cast<char>(0x38));
  weight.values.bytes[7 * 64 + 40] = static_cast<char>(0xff);
  for (const DType type : {DType::kBF16, DType::kF32}) {
    const Owned x = random_tensor(rng, type, 3, 64);
    for (const CpuIsa isa : vector_isas()) {
      const Owned out = multiply(isa, 2, x.t, weight.w, DType::kF32);
      for (int64_t r = 0; r < 3; ++r)
        for (int64_t o = 0; o < 20; ++o)
          EXPECT_EQ(std::isnan(out.t.row<float>(r)[o]), o == 7) << name_of(isa);
    }
  }
}

}  // namespace
}  // namespace sparrow::ops
