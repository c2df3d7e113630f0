// SPDX-License-Identifier: Apache-2.0
// The vision tower's kernels against sums in double, and against themselves in other company.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "base/math.h"
#include "base/strf.h"
#include "cuda/device_array.h"
#include "ops/cuda/vision/attend.h"
#include "ops/cuda/vision/product.h"
#include "ops/cuda/vision/rows.h"

namespace sparrow::ops::cuda {
namespace {

using Bf16 = __nv_bfloat16;
using test::DeviceArray;

constexpr int kDim = kTowerHeadDim, kPiece = 16;
// Half a unit in the last place of bf16, and as much again for what sums in another order give.
constexpr double kRounding = 0x1p-8;

std::vector<Bf16> random_bf16(std::mt19937& rng, size_t count, float spread) {
  std::uniform_real_distribution<float> uniform(-spread, spread);
  std::vector<Bf16> numbers(count);
  for (Bf16& x : numbers) x = __float2bfloat16(uniform(rng));
  return numbers;
}
std::vector<float> random_floats(std::mt19937& rng, size_t count, float spread) {
  std::uniform_real_distribution<float> uniform(-spread, spread);
  std::vector<float> numbers(count);
  for (float& x : numbers) x = uniform(rng);
  return numbers;
}

// Says where numbers are wrong, the first few of them.
class Judge {
 public:
  void near(Bf16 got, double want, double tolerance, int row, int column) {
    const double number = __bfloat162float(got);
    if (std::abs(number - want) <= tolerance || ++wrong_ > 5) return;
    ADD_FAILURE() << "row " << row << ", column " << column << ": got " << number << ", want " << want;
  }
  // `size`: of the sums that round.
  void rounded(Bf16 got, double want, double size, int row, int column) {
    near(got, want, kRounding * (std::abs(want) + 0.05 * size), row, column);
  }
  ~Judge() { EXPECT_EQ(wrong_, 0) << "numbers are wrong"; }

 private:
  int64_t wrong_ = 0;
};

double gelu(double x) {
  return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
}

// Where the tiles have channel `column` of q, k and v.
size_t place_in_tiles(int rows, int row, int column) {
  const int half = column / 8 % 2 ^ (row / 4 % 2);
  return (size_t(column / kPiece) * rows + row) * kPiece + half * 8 + column % 8;
}

struct Shape {
  int rows, n, k;
};

class TowerProduct : public ::testing::TestWithParam<Shape> {
 protected:
  TowerProduct() {
    const std::vector<Bf16> x = random_bf16(rng, size_t(rows) * k, 1.0f),
                            w = random_bf16(rng, size_t(n) * k, 1.0f);
    std::vector<float> xf(x.size()), wf(w.size());
    for (size_t i = 0; i < x.size(); ++i) xf[i] = __bfloat162float(x[i]);
    for (size_t i = 0; i < w.size(); ++i) wf[i] = __bfloat162float(w[i]);
    x_device.emplace(x), w_device.emplace(w), bias_device.emplace(bias);
    // All of a large product would take long: every row, and every column, but not every pair.
    for (int r = 0; r < rows; ++r)
      for (int c = (r * 7) % stride; c < n; c += stride) {
        double sum = bias[c];
        for (int i = 0; i < k; ++i) sum += double{xf[size_t(r) * k + i]} * wf[size_t(c) * k + i];
        sums.push_back(sum);
      }
  }

  TowerProductArgs args(TowerEnd end, Bf16* out) {
    return {.x = x_device->data(),
            .w = w_device->data(),
            .bias = bias_device->data(),
            .out = out,
            .rows = rows,
            .n = n,
            .k = k,
            .end = end};
  }
  void for_each(const std::function<void(int row, int column, double sum)>& use) const {
    size_t at = 0;
    for (int r = 0; r < rows; ++r)
      for (int c = (r * 7) % stride; c < n; c += stride) use(r, c, sums[at++]);
  }

  std::mt19937 rng{11};
  const int rows = GetParam().rows, n = GetParam().n, k = GetParam().k;
  const int stride = std::max<int64_t>(1, int64_t{rows} * n * k / 100'000'000);
  const double size = std::sqrt(k) / 3;
  const std::vector<float> bias = random_floats(rng, n, 2.0f);
  std::optional<DeviceArray<Bf16>> x_device, w_device;
  std::optional<DeviceArray<float>> bias_device;
  std::vector<double> sums;
};

TEST_P(TowerProduct, AddsABias) {
  const DeviceArray<Bf16> out(size_t(rows) * n);
  tower_product(args(TowerEnd::kBias, out.data()), nullptr);
  const std::vector<Bf16> got = out.download();
  Judge judge;
  for_each([&](int r, int c, double sum) { judge.rounded(got[size_t(r) * n + c], sum, size, r, c); });
}

TEST_P(TowerProduct, AppliesGelu) {
  const DeviceArray<Bf16> out(size_t(rows) * n);
  tower_product(args(TowerEnd::kGelu, out.data()), nullptr);
  const std::vector<Bf16> got = out.download();
  Judge judge;
  for_each([&](int r, int c, double sum) { judge.rounded(got[size_t(r) * n + c], gelu(sum), size, r, c); });
}

TEST_P(TowerProduct, AddsToTheResidualInPlace) {
  const std::vector<Bf16> before = random_bf16(rng, size_t(rows) * n, 4.0f);
  const DeviceArray<Bf16> out(before);
  TowerProductArgs all = args(TowerEnd::kResidual, out.data());
  all.residual = out.data();
  tower_product(all, nullptr);
  const std::vector<Bf16> got = out.download();
  Judge judge;
  for_each([&](int r, int c, double sum) {
    const size_t at = size_t(r) * n + c;
    judge.rounded(got[at], sum + double{__bfloat162float(before[at])}, size, r, c);
  });
}

TEST_P(TowerProduct, TurnsHeadsAndLaysThemInTiles) {
  if (n % (3 * kDim) != 0 || rows % 4 != 0) GTEST_SKIP() << "no heads";
  std::vector<float2> turns(size_t(rows) * kDim / 2);
  std::uniform_real_distribution<float> angle(-3, 3);
  for (float2& turn : turns) {
    const float a = angle(rng);
    turn = {std::cos(a), std::sin(a)};
  }
  const DeviceArray<float2> rotary(turns);
  const DeviceArray<Bf16> out(size_t(rows) * n), plain(size_t(rows) * n);
  TowerProductArgs all = args(TowerEnd::kHeads, out.data());
  all.rotary = rotary.data();
  tower_product(all, nullptr);
  tower_product(args(TowerEnd::kBias, plain.data()), nullptr);
  const std::vector<Bf16> got = out.download(), sums_of = plain.download();
  Judge judge;
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < n; c += 2) {
      const double a = __bfloat162float(sums_of[size_t(r) * n + c]),
                   b = __bfloat162float(sums_of[size_t(r) * n + c + 1]);
      const float2 turn = c < n / 3 * 2 ? turns[size_t(r) * kDim / 2 + c % kDim / 2] : float2{1, 0};
      const double turned_a = a * turn.x - b * turn.y, turned_b = b * turn.x + a * turn.y;
      // Of sums that were rounded once more.
      const auto tolerance = [&](double turned) {
        return kRounding * (std::abs(a) + std::abs(b) + std::abs(turned));
      };
      judge.near(got[place_in_tiles(rows, r, c)], turned_a, tolerance(turned_a), r, c);
      judge.near(got[place_in_tiles(rows, r, c + 1)], turned_b, tolerance(turned_b), r, c + 1);
    }
}

TEST_P(TowerProduct, ARowsBitsDependOnItAlone) {
  const DeviceArray<Bf16> all(size_t(rows) * n), some(size_t(rows) * n);
  tower_product(args(TowerEnd::kGelu, all.data()), nullptr);
  const int first = rows / 3 / 8 * 8, count = rows - first;
  TowerProductArgs part = args(TowerEnd::kGelu, some.data());
  part.x += int64_t{first} * k, part.rows = count;
  tower_product(part, nullptr);
  const std::vector<Bf16> whole = all.download(), own = some.download();
  EXPECT_EQ(0, std::memcmp(whole.data() + size_t(first) * n, own.data(), size_t(count) * n * sizeof(Bf16)));
}

INSTANTIATE_TEST_SUITE_P(Shapes, TowerProduct,
                         ::testing::Values(Shape{4, 8, 8}, Shape{8, 240, 160}, Shape{129, 200, 72},
                                           Shape{300, 480, 1176}, Shape{2304, 3840, 320},
                                           Shape{580, 6144, 256}, Shape{4096, 1280, 128}),
                         [](const auto& info) {
                           return strf("{}x{}x{}", info.param.rows, info.param.n, info.param.k);
                         });

// Segments of these lengths, each at the next multiple of eight.
struct Segments {
  std::vector<SegmentRows> rows;
  int total = 0;

  explicit Segments(const std::vector<int>& lengths) {
    for (const int length : lengths) {
      rows.push_back({total, total + length});
      total += round_up(length, kSegmentAlignment);
    }
  }
};

// q, k and v as [rows, 3, heads, kDim], and as tiles.
struct Heads {
  std::vector<Bf16> plain, tiles;

  Heads(std::mt19937& rng, int rows, int heads)
      : plain(random_bf16(rng, size_t(rows) * 3 * heads * kDim, 2.0f)), tiles(plain.size()) {
    const int n = 3 * heads * kDim;
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < n; ++c) tiles[place_in_tiles(rows, r, c)] = plain[size_t(r) * n + c];
  }
};

std::vector<Bf16> attend(const Heads& heads, const Segments& segments, int num_heads, int sms = 132) {
  const std::vector<SegmentItem> items = segment_items(segments.rows, num_heads, sms);
  EXPECT_LE(int64_t(items.size()), max_segment_items(segments.total, segments.rows.size(), num_heads));
  const DeviceArray<Bf16> tiles(heads.tiles), out(size_t(segments.total) * num_heads * kDim);
  const DeviceArray<SegmentItem> items_device(items);
  attend_segments({.heads = tiles.data(),
                   .items = items_device.data(),
                   .out = out.data(),
                   .rows = segments.total,
                   .num_items = int(items.size()),
                   .num_heads = num_heads,
                   .scale = 0.11180340f},
                  nullptr);
  return out.download();
}

TEST(AttendSegments, EqualsSumsInDouble) {
  std::mt19937 rng(5);
  const int num_heads = 3, n = 3 * num_heads * kDim;
  const Segments segments({4, 64, 68, 128, 132, 256, 300, 8, 1000});
  const Heads heads(rng, segments.total, num_heads);
  const std::vector<Bf16> got = attend(heads, segments, num_heads);
  const auto number = [&](int row, int which, int head, int channel) {
    return double{
        __bfloat162float(heads.plain[size_t(row) * n + (which * num_heads + head) * kDim + channel])};
  };
  for (const SegmentRows& segment : segments.rows)
    for (int head = 0; head < num_heads; ++head)
      for (int row = segment.begin; row<segment.end; row += segment.end - segment.begin> 500 ? 37 : 1) {
        std::vector<double> scores;
        for (int key = segment.begin; key < segment.end; ++key) {
          double score = 0;
          for (int c = 0; c < kDim; ++c) score += number(row, 0, head, c) * number(key, 1, head, c);
          scores.push_back(score * 0.11180340);
        }
        const double top = *std::max_element(scores.begin(), scores.end());
        double total = 0;
        std::vector<double> want(kDim);
        for (size_t i = 0; i < scores.size(); ++i) {
          const double e = std::exp(scores[i] - top);
          total += e;
          for (int c = 0; c < kDim; ++c) want[c] += e * number(segment.begin + int(i), 2, head, c);
        }
        for (int c = 0; c < kDim; ++c)
          ASSERT_NEAR(double{__bfloat162float(got[(size_t(row) * num_heads + head) * kDim + c])},
                      want[c] / total, 2 * 0x1p-8)
              << "segment " << segment.begin << ", row " << row << ", head " << head << ", channel " << c;
      }
}

TEST(AttendSegments, ASegmentsBitsDependOnItAlone) {
  std::mt19937 rng(6);
  const int num_heads = 2, width = num_heads * kDim;
  const Segments together({300, 4, 640, 132}), alone({640});
  const Heads heads(rng, together.total, num_heads);
  const std::vector<Bf16> all = attend(heads, together, num_heads);
  Heads own(rng, alone.total, num_heads);
  const int begin = together.rows[2].begin, n = 3 * width;
  for (int r = 0; r < 640; ++r)
    for (int c = 0; c < n; ++c) own.tiles[place_in_tiles(640, r, c)] = heads.plain[size_t(begin + r) * n + c];
  for (const int sms : {132, 7, 3}) {  // items of 64 rows and of 128
    const std::vector<Bf16> one = attend(own, alone, num_heads, sms);
    EXPECT_EQ(0, std::memcmp(all.data() + size_t(begin) * width, one.data(), one.size() * sizeof(Bf16)))
        << sms;
  }
}

TEST(TowerRows, LayerNormEqualsSumsInDouble) {
  for (const int hidden : {8, 160, 1280, 2048}) {
    std::mt19937 rng(3);
    const int rows = 37;
    const std::vector<Bf16> x = random_bf16(rng, size_t(rows) * hidden, 3.0f);
    const std::vector<float> weight = random_floats(rng, hidden, 1.0f),
                             bias = random_floats(rng, hidden, 1.0f);
    const DeviceArray<Bf16> x_device(x), out(x.size());
    const DeviceArray<float> weight_device(weight), bias_device(bias);
    layer_norm({x_device.data(), weight_device.data(), bias_device.data(), out.data(), rows, hidden, 1e-5f},
               nullptr);
    const std::vector<Bf16> got = out.download();
    SCOPED_TRACE(testing::Message() << "hidden " << hidden);
    Judge judge;
    for (int r = 0; r < rows; ++r) {
      double mean = 0, variance = 0;
      for (int c = 0; c < hidden; ++c) mean += double{__bfloat162float(x[size_t(r) * hidden + c])} / hidden;
      for (int c = 0; c < hidden; ++c)
        variance += std::pow(double{__bfloat162float(x[size_t(r) * hidden + c])} - mean, 2) / hidden;
      for (int c = 0; c < hidden; ++c) {
        const size_t at = size_t(r) * hidden + c;
        judge.rounded(
            got[at],
            (double{__bfloat162float(x[at])} - mean) / std::sqrt(variance + 1e-5) * weight[c] + bias[c], 0.1,
            r, c);
      }
    }
  }
}

TEST(TowerRows, SplitTermsKeepSixteenBits) {
  std::mt19937 rng(4);
  const int rows = 5, numbers = 1176;
  const std::vector<float> x = random_floats(rng, size_t(rows) * numbers, 3.0f);
  const DeviceArray<float> x_device(x);
  for (const bool is_matrix : {false, true}) {
    const DeviceArray<Bf16> out(x.size() * 3);
    split_terms({x_device.data(), out.data(), rows, numbers, is_matrix}, nullptr);
    const std::vector<Bf16> got = out.download();
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < numbers; ++i) {
        const auto term = [&](int t) { return __bfloat162float(got[(size_t(r) * 3 + t) * numbers + i]); };
        const float number = x[size_t(r) * numbers + i];
        ASSERT_EQ(term(0), term(is_matrix ? 1 : 2));
        ASSERT_NEAR(term(0) + term(is_matrix ? 2 : 1), number, std::abs(number) * 0x1p-16f);
      }
  }
}

TEST(TowerRows, RotaryIsThatOfThePlace) {
  const int rows = 9, angles = 13;
  std::vector<float2> axis(20 * angles);
  for (size_t i = 0; i < axis.size(); ++i) axis[i] = {float(i), -float(i)};
  std::vector<int32_t> places;
  for (int r = 0; r < rows; ++r) places.insert(places.end(), {r % 4, 2 * r, 19 - r});
  const DeviceArray<float2> axis_device(axis), out(size_t(rows) * kDim / 2);
  const DeviceArray<int32_t> places_device(places);
  patch_rotary({places_device.data(), axis_device.data(), out.data(), rows, angles}, nullptr);
  const std::vector<float2> got = out.download();
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < kDim / 2; ++i) {
      const float2 want =
          i < 39 ? axis[size_t(places[r * 3 + i / angles]) * angles + i % angles] : float2{1, 0};
      ASSERT_EQ(got[size_t(r) * kDim / 2 + i].x, want.x) << r << " " << i;
      ASSERT_EQ(got[size_t(r) * kDim / 2 + i].y, want.y) << r << " " << i;
    }
}

TEST(TowerRows, ScatterPutsRowsInTheirPlacesAndSkipsNegativeOnes) {
  std::mt19937 rng(8);
  const int columns = 24;
  const std::vector<Bf16> from = random_bf16(rng, 4 * columns, 1.0f);
  const DeviceArray<Bf16> from_device(from), to(10 * columns);
  const DeviceArray<int32_t> rows(std::vector<int32_t>{7, -1, 0, 3});
  scatter_rows({from_device.data(), rows.data(), to.data(), 4, columns}, nullptr);
  const std::vector<Bf16> got = to.download();
  const auto is = [&](int row, int source) {
    return std::memcmp(got.data() + row * columns, from.data() + source * columns, columns * sizeof(Bf16)) ==
           0;
  };
  EXPECT_TRUE(is(7, 0) && is(0, 2) && is(3, 3));
  for (int row = 0; row < 10; ++row) EXPECT_FALSE(is(row, 1));
}

}  // namespace
}  // namespace sparrow::ops::cuda
