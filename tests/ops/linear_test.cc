// SPDX-License-Identifier: Apache-2.0
// linear and route against plain sums in double, and their bit-exactness between calls of different shape.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "ops/ops_cases.h"

namespace sparrow::ops {
namespace {

// A sum in f32 errs by about sqrt(K) roundings of its partial sums, far below this share of sum |x w|; one
// missing term of the longest sum here is 150 times as much.
constexpr double kSumError = 1e-6;

constexpr MatrixFormat kFormats[] = {MatrixFormat::kBF16, MatrixFormat::kF32, MatrixFormat::kMxfp8,
                                     MatrixFormat::kMxfp4};

struct Shape {
  MatrixFormat weight;
  DType activation;
  int64_t in, out;
};

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const MatrixFormat weight : kFormats)
    for (const DType activation : {DType::kBF16, DType::kF32}) {
      for (const int64_t in : {1, 31, 32, 96, 100, 128, 160, 543})
        for (const int64_t out : {1, 8, 15, 16, 17, 100})
          if (!is_mx(weight) || in % 32 == 0) all.push_back({weight, activation, in, out});
      all.push_back({weight, activation, 96, 320});
      all.push_back({weight, activation, 6144, 49});
    }
  return all;
}

std::string describe(const Shape& s, CpuIsa isa) {
  return strf("{} x {} [{}, {}] on {}", name_of(s.activation), name_of(s.weight), s.out, s.in, name_of(isa));
}

void expect_row_is_product(const Owned& got, int64_t row, const Tensor& x, const Weight& weight) {
  for (int64_t o = 0; o < weight.out(); ++o) {
    double sum = 0, magnitude = 0;
    for (int64_t k = 0; k < weight.in(); ++k) {
      const double term = static_cast<double>(reference::load(x, row * x.row_stride + k)) *
                          static_cast<double>(reference::weight_at(weight, o, k));
      sum += term;
      magnitude += std::fabs(term);
    }
    const double value = static_cast<double>(got.t.row<float>(row)[o]);
    ASSERT_LE(std::fabs(value - sum), kSumError * magnitude) << "row " << row << ", output " << o;
  }
}

TEST(Linear, IsTheProductForEveryTypeAndTail) {
  for (const Shape& s : shapes()) {
    std::mt19937 rng(7);
    const OwnedWeight weight = random_weight(rng, s.weight, s.out, s.in);
    const Owned x = random_tensor(rng, s.activation, 33, s.in, 1.0f, s.in + 5);
    for (const CpuIsa isa : vector_isas()) {
      SCOPED_TRACE(describe(s, isa));
      const Owned out = multiply(isa, 2, x.t, weight.w, DType::kF32);
      for (const int64_t row : {0, 15, 16, 32}) expect_row_is_product(out, row, x.t, weight.w);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Linear, ScalarReferenceIsTheProduct) {
  std::mt19937 rng(8);
  for (const MatrixFormat type : kFormats) {
    const OwnedWeight weight = random_weight(rng, type, 9, 64);
    const Owned x = random_tensor(rng, DType::kBF16, 3, 64);
    const Owned out = multiply(CpuIsa::kScalar, 2, x.t, weight.w, DType::kF32);
    for (const int64_t row : {0, 1, 2}) expect_row_is_product(out, row, x.t, weight.w);
  }
}

TEST(Linear, RowsAreBitExactWhateverTheRowCount) {
  for (const MatrixFormat type : kFormats)
    for (const DType activation : {DType::kBF16, DType::kF32}) {
      std::mt19937 rng(9);
      const int64_t in = is_mx(type) ? 1056 : 1070, rows = 513;
      const OwnedWeight weight = random_weight(rng, type, 150, in);
      const Owned x = random_tensor(rng, activation, rows, in);
      for (const CpuIsa isa : vector_isas()) {
        SCOPED_TRACE(describe({type, activation, in, 150}, isa));
        const Owned all = multiply(isa, 2, x.t, weight.w, DType::kF32);
        // Every way that rows are put into register tiles, and the counts at which a kernel changes its walk.
        for (const int64_t count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 16, 17, 31, 32, 33, 64, 100, 128, 129})
          for (const int64_t first : {int64_t{0}, int64_t{5}, rows - count}) {
            const Owned some = multiply(isa, 2, x.t.rows_at(first, count), weight.w, DType::kF32);
            ASSERT_TRUE(same_rows(some, 0, all, first, count)) << count << " rows from " << first;
          }
      }
    }
}

TEST(Linear, BitsOfAnOutputDoNotDependOnTheOutputsBesideIt) {
  for (const MatrixFormat type : kFormats)
    for (const int64_t in : {96, 512, 544, 1024, 1056, 2080}) {
      std::mt19937 rng(16);
      const OwnedWeight weight = random_weight(rng, type, 140, in);
      const Owned x = random_tensor(rng, DType::kBF16, 20, in);
      for (const CpuIsa isa : vector_isas())
        for (const int64_t rows : {1, 3, 20}) {
          SCOPED_TRACE(describe({type, DType::kBF16, in, 140}, isa));
          const Owned all = multiply(isa, 1, x.t.rows_at(0, rows), weight.w, DType::kF32);
          for (const int64_t first : {0, 3, 77})
            for (const int64_t outputs : {1, 2, 7, 8, 12, 31, 63}) {
              Weight some = weight.w;
              some.values = some.values.rows_at(first, outputs);
              if (!some.scales.empty()) some.scales = some.scales.rows_at(first, outputs);
              const Owned part = multiply(isa, 1, x.t.rows_at(0, rows), some, DType::kF32);
              for (int64_t r = 0; r < rows; ++r)
                ASSERT_EQ(std::memcmp(part.row(r), all.row(r) + first * 4, part.row_bytes()), 0)
                    << rows << " rows, " << outputs << " outputs from " << first << ", row " << r;
            }
        }
    }
}

TEST(Linear, BitsDoNotDependOnThreadsOrOnOtherProjections) {
  std::mt19937 rng(10);
  const OwnedWeight a = random_weight(rng, DType::kBF16, 300, 544),
                    b = random_weight(rng, MatrixFormat::kMxfp4, 70, 544),
                    c = random_weight(rng, DType::kF32, 33, 544);
  const Owned x = random_tensor(rng, DType::kBF16, 70, 544);
  for (const CpuIsa isa : vector_isas()) {
    const Owned a1 = multiply(isa, 1, x.t, a.w, DType::kBF16), b1 = multiply(isa, 1, x.t, b.w, DType::kBF16),
                c1 = multiply(isa, 1, x.t, c.w, DType::kF32);
    for (const int threads : {1, 2, 3}) {
      Machine machine(isa, threads);
      // One wide row holds the three results side by side.
      Owned fused(DType::kBF16, 70, 370), third(DType::kF32, 70, 33);
      Tensor left = fused.t, right = fused.t;
      left.shape[1] = 300;
      right.data = static_cast<char*>(fused.t.data) + 300 * 2;
      right.shape[1] = 70;
      const Projection projections[] = {{&a.w, left}, {&c.w, third.t}, {&b.w, right}};
      linear(machine.exec, x.t, projections);
      ASSERT_TRUE(same_rows(third, 0, c1, 0, 70));
      for (int64_t r = 0; r < 70; ++r) {
        ASSERT_EQ(std::memcmp(fused.row(r), a1.row(r), 600), 0) << name_of(isa) << " row " << r;
        ASSERT_EQ(std::memcmp(fused.row(r) + 600, b1.row(r), 140), 0) << name_of(isa) << " row " << r;
      }
    }
  }
}

TEST(Linear, RoundsOnceToTheOutputType) {
  std::mt19937 rng(12);
  const OwnedWeight weight = random_weight(rng, DType::kBF16, 50, 96);
  const Owned x = random_tensor(rng, DType::kBF16, 5, 96);
  for (const CpuIsa isa : vector_isas()) {
    const Owned wide = multiply(isa, 2, x.t, weight.w, DType::kF32);
    const Owned narrow = multiply(isa, 2, x.t, weight.w, DType::kBF16);
    for (int64_t r = 0; r < 5; ++r)
      for (int64_t o = 0; o < 50; ++o)
        ASSERT_EQ(narrow.t.row<BFloat16>(r)[o].bits, to_bf16(wide.t.row<float>(r)[o]).bits);
  }
}

TEST(Linear, NaNAndInfinityStayInTheirRow) {
  std::mt19937 rng(13);
  for (const DType type : {DType::kBF16, DType::kF32}) {
    const OwnedWeight weight = random_weight(rng, type, 40, 100);
    const Owned clean = random_tensor(rng, type, 20, 100);
    const Owned dirty = copy_of(clean);
    reference::store(dirty.t, 3 * 100 + 99, NAN);
    reference::store(dirty.t, 17 * 100 + 2, std::numeric_limits<float>::infinity());
    for (const CpuIsa isa : vector_isas()) {
      const Owned a = multiply(isa, 2, clean.t, weight.w, DType::kF32);
      const Owned b = multiply(isa, 2, dirty.t, weight.w, DType::kF32);
      for (int64_t r = 0; r < 20; ++r) {
        if (r == 3 || r == 17) {
          EXPECT_FALSE(std::isfinite(b.t.row<float>(r)[0])) << name_of(isa);
        } else {
          EXPECT_TRUE(same_rows(a, r, b, r, 1)) << name_of(isa);
        }
      }
    }
  }
}

TEST(Linear, NoRowsAreNoWork) {
  std::mt19937 rng(14);
  const OwnedWeight weight = random_weight(rng, DType::kBF16, 4, 32);
  for (const CpuIsa isa : vector_isas()) {
    Machine machine(isa);
    const Tensor none(nullptr, DType::kBF16, {0, 32}), out(nullptr, DType::kBF16, {0, 4});
    const Projection projection{&weight.w, out};
    linear(machine.exec, none, {&projection, 1});
  }
}

// Memory that ends where an unreadable page begins.
class Guarded {
 public:
  explicit Guarded(const std::vector<char>& content) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t body = (content.size() + page - 1) / page * page;
    bytes_ = body + page;
    base_ =
        static_cast<char*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(mprotect(base_ + body, page, PROT_NONE), 0);
    data_ = base_ + body - content.size();
    std::copy(content.begin(), content.end(), data_);
  }
  ~Guarded() { munmap(base_, bytes_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  void* data() const { return data_; }

 private:
  char *base_, *data_;
  size_t bytes_;
};

TEST(Linear, NeverReadsPastTheEndOfAMatrix) {
  for (const MatrixFormat type : kFormats)
    for (const int64_t in : {32, 96, 100, 1056})
      for (const int64_t out : {1, 15, 17, 31, 32, 128}) {
        if (is_mx(type) && in % 32 != 0) continue;
        std::mt19937 rng(15);
        const OwnedWeight weight = random_weight(rng, type, out, in);
        const Guarded values(weight.values.bytes), scales(weight.scales.bytes);
        Weight guarded = weight.w;
        guarded.values.data = values.data();
        if (!guarded.scales.empty()) guarded.scales.data = scales.data();
        for (const int64_t rows : {1, 3, 8, 40}) {
          const Owned x = random_tensor(rng, DType::kBF16, rows, in);
          const Guarded input(x.bytes);
          Tensor guarded_x = x.t;
          guarded_x.data = input.data();
          for (const CpuIsa isa : vector_isas()) {
            const Owned a = multiply(isa, 2, guarded_x, guarded, DType::kF32);
            const Owned b = multiply(isa, 2, x.t, weight.w, DType::kF32);
            ASSERT_TRUE(same_rows(a, 0, b, 0, rows)) << name_of(isa);
          }
        }
      }
}

struct Routed {
  Owned ids, weights;
};

Routed route_rows(CpuIsa isa, const Tensor& x, const Weight& gate, const Tensor& bias, int top_k) {
  Machine machine(isa);
  Routed routed{Owned(DType::kI32, x.rows(), top_k), Owned(DType::kF32, x.rows(), top_k)};
  route(machine.exec, x, gate, bias, top_k, routed.ids.t, routed.weights.t);
  return routed;
}

// Sigmoids of logits that differ in the last bits of an f32 sum.
constexpr float kWeightError = 1e-5f;

TEST(Route, PicksWhatTheReferencePicks) {
  for (const DType gate_type : {DType::kF32, DType::kBF16})
    for (const DType x_type : {DType::kBF16, DType::kF32}) {
      std::mt19937 rng(20);
      const OwnedWeight gate = random_weight(rng, gate_type, 128, 544);
      const Owned x = random_tensor(rng, x_type, 50, 544);
      const Owned bias = random_tensor(rng, gate_type, 1, 128, 0.3f);
      const Routed want = route_rows(CpuIsa::kScalar, x.t, gate.w, bias.t, 4);
      for (const CpuIsa isa : vector_isas()) {
        const Routed got = route_rows(isa, x.t, gate.w, bias.t, 4);
        EXPECT_TRUE(same_rows(got.ids, 0, want.ids, 0, 50)) << name_of(isa);
        EXPECT_TRUE(near(got.weights.t, want.weights.t, kWeightError, 0.0f)) << name_of(isa);
        const Routed one = route_rows(isa, x.t.rows_at(33, 1), gate.w, bias.t, 4);
        EXPECT_TRUE(same_rows(one.weights, 0, got.weights, 33, 1)) << name_of(isa);
      }
    }
}

TEST(Route, WeightsComeFromUnbiasedSigmoidsAndSumToOne) {
  // Logits 0, 1, 2, 3 from a one-column gate; the bias lifts expert 0 over expert 1.
  std::vector<float> gate_values = {0, 1, 2, 3}, one = {1}, bias_values = {0.5f, 0, 0, 0};
  const Weight gate{Tensor(gate_values.data(), DType::kF32, {4, 1}), {}};
  const Tensor x(one.data(), DType::kF32, {1, 1}), bias(bias_values.data(), DType::kF32, {4});
  const auto sigmoid = [](double v) { return 1.0 / (1.0 + std::exp(-v)); };
  for (const CpuIsa isa : {CpuIsa::kScalar, detect_cpu_isa()}) {
    const Routed got = route_rows(isa, x, gate, bias, 2);
    const double sum = sigmoid(0) + sigmoid(3);
    EXPECT_EQ(got.ids.t.row<int32_t>(0)[0], 0);
    EXPECT_EQ(got.ids.t.row<int32_t>(0)[1], 3);
    EXPECT_NEAR(got.weights.t.row<float>(0)[0], sigmoid(0) / sum, 1e-6);
    EXPECT_NEAR(got.weights.t.row<float>(0)[1], sigmoid(3) / sum, 1e-6);
  }
}

TEST(Route, TiesGoToTheLowerId) {
  std::vector<float> gate_values = {1, 2, 2, 1, 2, 2}, one = {1}, bias_values(6, 0.0f);
  const Weight gate{Tensor(gate_values.data(), DType::kF32, {6, 1}), {}};
  const Tensor x(one.data(), DType::kF32, {1, 1}), bias(bias_values.data(), DType::kF32, {6});
  for (const CpuIsa isa : {CpuIsa::kScalar, detect_cpu_isa()}) {
    const Routed got = route_rows(isa, x, gate, bias, 3);
    const int32_t* ids = got.ids.t.row<int32_t>(0);
    EXPECT_EQ((std::vector<int32_t>{ids[0], ids[1], ids[2]}), (std::vector<int32_t>{1, 2, 4}))
        << name_of(isa);
  }
}

TEST(Route, ALaterLargerChoicePushesOutTheHigherIdOfATie) {
  std::vector<float> gate_values = {1, 1, 2}, one = {1}, bias_values(3, 0.0f);
  const Weight gate{Tensor(gate_values.data(), DType::kF32, {3, 1}), {}};
  const Tensor x(one.data(), DType::kF32, {1, 1}), bias(bias_values.data(), DType::kF32, {3});
  for (const CpuIsa isa : {CpuIsa::kScalar, detect_cpu_isa()}) {
    const Routed got = route_rows(isa, x, gate, bias, 2);
    EXPECT_EQ(got.ids.t.row<int32_t>(0)[0], 0) << name_of(isa);
    EXPECT_EQ(got.ids.t.row<int32_t>(0)[1], 2) << name_of(isa);
  }
}

TEST(Route, NaNLogitsRankLastAndIdsStayValid) {
  std::mt19937 rng(21);
  const OwnedWeight gate = random_weight(rng, DType::kF32, 16, 32);
  reference::store(gate.w.values, 1 * 32, NAN);  // one of the first top_k, which start as picks
  const Owned x = random_tensor(rng, DType::kBF16, 4, 32);
  reference::store(x.t, 2 * 32, NAN);
  const Owned bias = random_tensor(rng, DType::kF32, 1, 16, 0.1f);
  for (const CpuIsa isa : vector_isas()) {
    const Routed got = route_rows(isa, x.t, gate.w, bias.t, 4);
    for (int64_t r = 0; r < 4; ++r) {
      const int32_t* ids = got.ids.t.row<int32_t>(r);
      EXPECT_TRUE(std::is_sorted(ids, ids + 4, std::less_equal<>()));
      EXPECT_GE(ids[0], 0);
      EXPECT_LT(ids[3], 16);
      EXPECT_TRUE(r == 2 || std::count(ids, ids + 4, 1) == 0);
    }
  }
}

}  // namespace
}  // namespace sparrow::ops
