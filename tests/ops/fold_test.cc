// SPDX-License-Identifier: Apache-2.0
// What fp8 activations do to numbers: rows of MXFP8 folded to one scale, tokens rounded to e4m3, and the sums
// of a tensor core that keeps few bits. Errors are judged, and printed for the tables of docs/gpu-model.md.
#include "ops/cuda/mx/fold.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/strf.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/mx/mx_groups.h"
#include "ops/cuda/mx/cell.h"
#include "support/golden.h"

namespace sparrow::ops::cuda {
namespace {

constexpr int kLargest = 0x7e;  // 448

TEST(Fold, EveryCodeKeepsItsNumberOrRoundsToTheNearest) {
  for (uint32_t code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;
    const double number = e4m3_to_float(static_cast<uint8_t>(code));
    for (int shift = -24; shift <= 17; ++shift) {
      const double wanted = std::ldexp(number, shift);
      if (std::abs(wanted) > 448) continue;
      const uint32_t got = fold_code(code, shift);
      ASSERT_NE(got & 0x7f, 0x7fu) << code << ", " << shift;
      const double error = std::abs(e4m3_to_float(static_cast<uint8_t>(got)) - wanted);
      for (const int next : {-1, 1}) {
        const int other = static_cast<int>(got & 0x7f) + next;
        if (other < 0 || other > kLargest) continue;
        const double there = e4m3_to_float(static_cast<uint8_t>(other));
        const double distance = std::abs(there - std::abs(wanted));
        ASSERT_LE(error, distance) << code << ", " << shift;
        if (error == distance) {
          ASSERT_EQ(got % 2, 0u) << "a tie, " << code << ", " << shift;
        }
      }
      if (shift >= 0) {
        ASSERT_EQ(error, 0) << code << ", " << shift;
      }
    }
  }
}

TEST(Fold, RoomIsWhatACodeMayGrowBy) {
  for (uint32_t code = 1; code <= kLargest; ++code) {
    const double number = e4m3_to_float(static_cast<uint8_t>(code));
    EXPECT_LE(std::ldexp(number, e4m3_room(code)), 448) << code;
    EXPECT_GT(std::ldexp(number, e4m3_room(code) + 1), 448) << code;
    if (code > 1) {
      EXPECT_LE(e4m3_room(code), e4m3_room(code - 1)) << code;
    }
  }
}

TEST(Fold, RegistersHoldTheColumnsThatTokensHaveInTheirPlace) {
  std::mt19937 rng(3);
  for (int row : {0, 5, 8, 15}) {
    std::array<uint8_t, 32> codes, places;
    for (int c = 0; c < 32; ++c) {
      codes[static_cast<size_t>(c)] = static_cast<uint8_t>(rng());
      places[static_cast<size_t>(e4m3_place(c))] = codes[static_cast<size_t>(c)];
    }
    for (int q = 0; q < 4; ++q) {
      // The words of the lane that owns these columns.
      uint32_t words[2] = {}, registers[2] = {};
      for (int c = 0; c < 32; ++c)
        if (cell_word_at(MatrixFormat::kMxfp8, row, c) / 16 % 32 == row % 8 * 4 + q)
          words[c / 16] ^= cell_bits(MatrixFormat::kMxfp8, c, codes[static_cast<size_t>(c)]);
      e4m3_quads(words[0], words[1], registers[0], registers[1]);
      for (int b = 0; b < 4; ++b) {
        EXPECT_EQ(registers[0] >> (8 * b) & 0xff, places[static_cast<size_t>(4 * q + b)]) << q << ", " << b;
        EXPECT_EQ(registers[1] >> (8 * b) & 0xff, places[static_cast<size_t>(16 + 4 * q + b)])
            << q << ", " << b;
      }
    }
  }
}

// ---- errors ----

float e4m3_of(float x) {
  const float magnitude = std::min(std::abs(x), 448.0f);
  const int exponent = std::max(magnitude > 0 ? std::ilogb(magnitude) : -6, -6);
  const float step = std::ldexp(1.0f, exponent - 3);
  return std::copysign(std::nearbyint(magnitude / step) * step, x);
}

// A row of a matrix as e4m3 numbers and one scale; counts the codes that changed their number.
struct FoldedRow {
  std::vector<float> codes;
  double scale = 0;
  int64_t changed = 0;

  FoldedRow(const uint8_t* row, const uint8_t* scales, int64_t columns) {
    int row_scale = 0;
    for (int64_t g = 0; g < columns / kScaleGroup; ++g) {
      uint32_t largest = 0;
      for (int64_t c = 0; c < kScaleGroup; ++c)
        largest = std::max(largest, uint32_t{row[g * kScaleGroup + c]} & 0x7f);
      row_scale = std::max(row_scale, folded_scale(largest, scales[g]));
    }
    scale = std::ldexp(1.0, row_scale - 127);
    for (int64_t c = 0; c < columns; ++c) {
      const int shift = scales[c / kScaleGroup] - row_scale;
      codes.push_back(e4m3_to_float(static_cast<uint8_t>(fold_code(row[c], shift))));
      changed += std::ldexp(e4m3_to_float(row[c]), shift) != codes.back();
    }
  }
};

// A token as e4m3 numbers; each `run` columns have a scale.
struct RoundedToken {
  std::vector<float> codes, scales;
  int64_t run;

  RoundedToken(const std::vector<float>& x, int64_t run) : run(run) {
    for (size_t first = 0; first < x.size(); first += static_cast<size_t>(run)) {
      float largest = 0;
      const size_t end = std::min(x.size(), first + static_cast<size_t>(run));
      for (size_t c = first; c < end; ++c) largest = std::max(largest, std::abs(x[c]));
      const float factor = largest > 0 ? 448 / largest : 0;
      for (size_t c = first; c < end; ++c) codes.push_back(e4m3_of(x[c] * factor));
      scales.push_back(largest / 448);
    }
  }
};

// What is known of Hopper's e4m3 products: 32 products and the sum so far are brought to the exponent of the
// largest and cut behind 13 bits. `promoted`: columns after which the sum goes to an f32; 0: exact sums.
double tensor_core_sum(const std::vector<float>& w, const RoundedToken& x, int64_t promoted) {
  const auto columns = static_cast<int64_t>(w.size());
  double total = 0, sum = 0;
  for (int64_t first = 0; first < columns; first += 32) {
    double terms[33] = {sum};
    double largest = std::abs(sum), exact = sum;
    const int64_t end = std::min(columns, first + 32);
    for (int64_t c = first; c < end; ++c) {
      const auto i = static_cast<size_t>(c);
      const double term = double{w[i]} * x.codes[i];
      terms[c - first + 1] = term, exact += term, largest = std::max(largest, std::abs(term));
    }
    if (promoted == 0 || largest == 0) {
      sum = exact;
    } else {
      const double step = std::ldexp(1.0, std::ilogb(largest) - 13);
      sum = 0;
      for (const double term : terms) sum += std::trunc(term / step) * step;
    }
    const bool scale_ends = end % x.run == 0 || end == columns;
    if (scale_ends || (promoted > 0 && end % promoted == 0)) {
      const int64_t at = (end - 1) / x.run;
      total += sum * x.scales[static_cast<size_t>(at)], sum = 0;
    }
  }
  return total;
}

// Root mean squares of errors, as parts of the outputs' own.
struct Errors {
  double fold = 0, tokens = 0, blocks = 0;  // of folded weights; with rounded tokens; a scale for each 128
  double kept = 0, promoted = 0,
         promoted4 = 0;  // of the sums alone: never promoted, each 128, each 512 columns
  int64_t changed = 0, codes = 0;

  double share() const { return static_cast<double>(changed) / static_cast<double>(codes); }
};

// A matrix as files have it.
struct Matrix {
  const uint8_t *codes, *scales;
  int64_t rows, columns;
};

// Products with tokens that are normal, their columns of unequal spread, and that have `aligned` of the row
// they meet, so that the sum is that many times larger than the root of the number of columns.
Errors measure(const Matrix& m, float aligned = 0) {
  constexpr int kTokens = 4;
  std::mt19937 rng(11);
  std::normal_distribution<float> normal;
  std::vector<float> spread(static_cast<size_t>(m.columns)), row(spread.size()), token(spread.size());
  for (float& s : spread) s = std::exp(0.5f * normal(rng));
  Errors e;
  double size = 0;
  for (int64_t r = 0; r < m.rows; ++r) {
    const uint8_t* scales = m.scales + r * (m.columns / kScaleGroup);
    expand_groups(MatrixFormat::kMxfp8, m.codes + r * m.columns, scales, row);
    const FoldedRow folded(m.codes + r * m.columns, scales, m.columns);
    e.changed += folded.changed, e.codes += m.columns;
    double squares = 0;
    for (const float w : row) squares += double{w} * w;
    const auto unit =
        static_cast<float>(std::sqrt(static_cast<double>(m.columns) / std::max(squares, 1e-30)));
    for (int t = 0; t < kTokens; ++t) {
      double exact = 0, with_fold = 0;
      for (size_t c = 0; c < token.size(); ++c) {
        token[c] = to_float(to_bf16(spread[c] * normal(rng) + aligned * unit * row[c]));
        exact += double{row[c]} * token[c];
        with_fold += folded.codes[c] * folded.scale * token[c];
      }
      const RoundedToken whole(token, m.columns), blocks(token, 128);
      const auto sum = [&](const RoundedToken& x, int64_t promoted) {
        return folded.scale * tensor_core_sum(folded.codes, x, promoted);
      };
      const auto add = [](double& to, double got, double wanted) { to += (got - wanted) * (got - wanted); };
      const double rounded = sum(whole, 0);
      add(e.fold, with_fold, exact), add(e.tokens, rounded, exact), add(e.blocks, sum(blocks, 0), exact);
      add(e.kept, sum(whole, m.columns), rounded), add(e.promoted, sum(whole, 128), rounded);
      add(e.promoted4, sum(whole, 512), rounded);
      size += exact * exact;
    }
  }
  for (double* v : {&e.fold, &e.tokens, &e.blocks, &e.kept, &e.promoted, &e.promoted4})
    *v = std::sqrt(*v / size);
  return e;
}

void print(const std::string& name, const Errors& e) {
  std::printf(
      "%-34s changed %.4f%%, fold %.0e | tokens %.2f%%, by 128 %.2f%% | sums %.3f%%, by 512 %.3f%%, by 128 "
      "%.3f%%\n",
      name.c_str(), 100 * e.share(), e.fold, 100 * e.tokens, 100 * e.blocks, 100 * e.kept, 100 * e.promoted4,
      100 * e.promoted);
}

TEST(Fold, RandomMatricesLoseLittleToTheFoldAndAFewPercentToTheTokens) {
  constexpr int64_t kRows = 64;
  for (const int64_t columns : {384, 6144})
    for (const bool heavy : {false, true})
      for (const float aligned : {0.0f, 0.1f, 0.5f}) {
        std::mt19937 rng(7);
        std::normal_distribution<float> normal;
        std::student_t_distribution<float> student(5);
        std::vector<float> values(static_cast<size_t>(kRows * columns));
        for (float& v : values) v = 0.02f * (heavy ? student(rng) : normal(rng));
        std::vector<uint8_t> codes(values.size()), scales(values.size() / kScaleGroup);
        ASSERT_EQ(round_groups(MatrixFormat::kMxfp8, values, codes.data(), scales.data()).refused, -1);
        const Errors e = measure({codes.data(), scales.data(), kRows, columns}, aligned);
        print(strf("{}, {} columns, {} aligned", heavy ? "Student t" : "normal", columns, aligned), e);
        EXPECT_LT(e.share(), 5e-4);
        EXPECT_LT(e.fold, 1e-5);
        EXPECT_LT(e.tokens, 0.04);
        EXPECT_LT(e.blocks, 0.04);
        EXPECT_LT(e.promoted, 0.001);
        EXPECT_LE(e.promoted, e.promoted4);
        EXPECT_LE(e.promoted4, e.kept);
      }
}

TEST(Fold, TheOracleModelLosesAsLittle) {
  const Checkpoint checkpoint = Checkpoint::open(test::golden_dir() / "mxfp8").value();
  double tokens = 0, fold = 0;
  int64_t changed = 0, codes = 0, matrices = 0;
  for (const SafetensorsFile& file : checkpoint.files())
    for (const auto& [name, entry] : file.header().entries) {
      if (entry.dtype != DType::kF8E4M3) continue;
      const SafetensorsEntry* const scales = file.find(name + "_scale_inv");
      ASSERT_NE(scales, nullptr) << name;
      const auto bytes = [&](const SafetensorsEntry& e) {
        return reinterpret_cast<const uint8_t*>(file.bytes(e).data());
      };
      const Errors e = measure({bytes(entry), bytes(*scales), entry.shape[0], entry.shape[1]});
      EXPECT_LT(e.tokens, 0.06) << name;
      tokens = std::max(tokens, e.tokens), fold = std::max(fold, e.fold);
      changed += e.changed, codes += e.codes, ++matrices;
    }
  EXPECT_GT(matrices, 0);
  std::printf("oracle: %ld matrices, %ld of %ld codes changed, fold at most %.0e, tokens at most %.2f%%\n",
              matrices, changed, codes, fold, 100 * tokens);
  EXPECT_LT(static_cast<double>(changed), 1e-3 * static_cast<double>(codes));
}

}  // namespace
}  // namespace sparrow::ops::cuda
