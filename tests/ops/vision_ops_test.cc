// SPDX-License-Identifier: Apache-2.0
// Biases and GELU of a product, LayerNorm, rotary without a norm, attention within segments.
#include "ops/vision_ops.h"

#include <numbers>

#include "ops/ops_cases.h"

namespace sparrow::ops {
namespace {

constexpr DType kFloats[] = {DType::kBF16, DType::kF32};

// One unit in the last place of a bf16 result; in f32 the last bits of a sum.
float relative_error(DType type) {
  return type == DType::kBF16 ? 0x1p-7f : 4e-6f;
}

TEST(Gelu, IsTheErrorFunctionsFromTheTailToTheTop) {
  // A matrix of one number, 1: what comes out is the activation of x itself.
  Owned one(DType::kF32, 1, 1);
  reference::store(one.t, 0, 1.0f);
  const Weight weight{one.t, {}};
  std::vector<float> inputs = {0.0f, -0.0f, 1e-30f, -1e-30f, 12.0f, -12.0f, 100.0f, -100.0f};
  for (int i = -3000; i <= 3000; ++i) inputs.push_back(static_cast<float>(i) * 0.003f);
  const auto rows = static_cast<int64_t>(inputs.size());
  const Tensor x(inputs.data(), DType::kF32, {rows, 1});
  for (const CpuIsa isa : vector_isas()) {
    Machine machine(isa);
    Owned got(DType::kF32, rows, 1);
    const Projection projection{&weight, got.t, {}, true};
    linear(machine.exec, x, {&projection, 1});
    for (int64_t r = 0; r < rows; ++r) {
      const double z = static_cast<double>(inputs[static_cast<size_t>(r)]);
      const double want = 0.5 * z * std::erfc(-z / std::numbers::sqrt2);
      // Nothing cancels in the tail, where e^-z^2 alone loses some bits.
      ASSERT_NEAR(static_cast<double>(reference::load(got.t, r)), want, 1e-5 * std::abs(want) + 1e-37)
          << name_of(isa) << " " << z;
    }
  }
}

TEST(Gelu, NaNStaysNaN) {
  Owned one(DType::kF32, 1, 1);
  reference::store(one.t, 0, 1.0f);
  const Weight weight{one.t, {}};
  Owned x(DType::kF32, 1, 1);
  reference::store(x.t, 0, NAN);
  for (const CpuIsa isa : vector_isas()) {
    Machine machine(isa);
    Owned got(DType::kF32, 1, 1);
    reference::store(got.t, 0, 1.0f);
    const Projection projection{&weight, got.t, {}, true};
    linear(machine.exec, x.t, {&projection, 1});
    EXPECT_TRUE(std::isnan(reference::load(got.t, 0))) << name_of(isa);
  }
}

TEST(LinearWithBias, IsTheDefinitionForAnyNumberOfOutputs) {
  for (const DType type : kFloats)
    for (const int64_t outputs : {1, 17, 128, 129, 300})
      for (const bool gelu : {false, true}) {
        std::mt19937 rng(60);
        const Owned x = random_tensor(rng, type, 9, 96), bias = random_tensor(rng, DType::kF32, 1, outputs);
        const OwnedWeight weight = random_weight(rng, type, outputs, 96, 0.2f);
        Owned want(type, 9, outputs);
        const Projection reference{&weight.w, want.t, bias.t, gelu};
        reference::linear(x.t, {&reference, 1});
        for (const CpuIsa isa : vector_isas()) {
          Machine machine(isa);
          Owned got(type, 9, outputs);
          const Projection projection{&weight.w, got.t, bias.t, gelu};
          linear(machine.exec, x.t, {&projection, 1});
          ASSERT_TRUE(near(got.t, want.t, relative_error(type), 4e-6f)) << name_of(isa) << " " << outputs;
        }
      }
}

TEST(LayerNorm, IsTheDefinitionForEveryTypeAndLength) {
  for (const DType type : kFloats)
    for (const DType weight_type : kFloats)
      for (const int64_t columns : {1, 7, 33, 160, 1280}) {
        std::mt19937 rng(61);
        // Far from zero: a variance as the mean of squares less the square of the mean would lose its bits.
        Owned x = random_tensor(rng, type, 5, columns, 1.0f, columns + 3);
        for (int64_t i = 0; i < columns; ++i) reference::store(x.t, i, reference::load(x.t, i) + 300.0f);
        const Owned weight = random_tensor(rng, weight_type, 1, columns),
                    bias = random_tensor(rng, DType::kF32, 1, columns);
        const LayerNorm norm{weight.t, bias.t, 1e-5f};
        Owned want(type, 5, columns);
        reference::layer_norm(x.t, norm, want.t);
        for (const CpuIsa isa : vector_isas()) {
          Machine machine(isa);
          Owned got(type, 5, columns);
          layer_norm(machine.exec, x.t, norm, got.t);
          ASSERT_TRUE(near(got.t, want.t, relative_error(type), 1e-4f)) << name_of(isa) << " " << columns;
        }
      }
}

TEST(LayerNorm, SeesTheResidualAsItIsStored) {
  std::mt19937 rng(62);
  const Owned before = random_tensor(rng, DType::kBF16, 4, 160),
              delta = random_tensor(rng, DType::kBF16, 4, 160);
  const Owned weight = random_tensor(rng, DType::kBF16, 1, 160),
              bias = random_tensor(rng, DType::kF32, 1, 160);
  const LayerNorm norm{weight.t, bias.t, 1e-5f};
  for (const CpuIsa isa : vector_isas()) {
    Machine machine(isa);
    Owned fused = copy_of(before), apart = copy_of(before), got(DType::kBF16, 4, 160),
          want(DType::kBF16, 4, 160);
    add_layer_norm(machine.exec, fused.t, delta.t, norm, got.t);
    reference::add(apart.t, delta.t);
    ASSERT_TRUE(same_rows(fused, 0, apart, 0, 4)) << name_of(isa);
    layer_norm(machine.exec, apart.t, norm, want.t);
    ASSERT_TRUE(same_rows(got, 0, want, 0, 4)) << name_of(isa);
  }
}

TEST(Rope, TurnsPairsAndLeavesTheRestOfAHead) {
  constexpr int kHeadDim = 80, kHalf = 39;
  for (const DType type : kFloats) {
    std::mt19937 rng(63);
    const Owned x = random_tensor(rng, type, 6, 2 * kHeadDim);
    const Owned cos = random_tensor(rng, DType::kF32, 6, kHalf),
                sin = random_tensor(rng, DType::kF32, 6, kHalf);
    Owned want = copy_of(x);
    reference::rope(want.t, kHeadDim, {cos.t, sin.t});
    for (const CpuIsa isa : vector_isas()) {
      Machine machine(isa);
      Owned got = copy_of(x);
      rope(machine.exec, got.t, kHeadDim, {cos.t, sin.t});
      ASSERT_TRUE(near(got.t, want.t, relative_error(type), 1e-6f)) << name_of(isa);
      for (int64_t r = 0; r < 6; ++r)
        for (const int64_t c : {78, 79, 158, 159})
          ASSERT_EQ(reference::load(got.t, r * 160 + c), reference::load(x.t, r * 160 + c));
    }
  }
}

struct Heads {
  Owned q, k, v, out;

  Heads(std::mt19937& rng, DType type, int64_t rows, int64_t width)
      : q(random_tensor(rng, type, rows, width)),
        k(random_tensor(rng, type, rows, width)),
        v(random_tensor(rng, type, rows, width)),
        out(type, rows, width) {}

  SegmentAttention over(std::span<const int64_t> begins, int heads) const {
    const float scale = 1.0f / std::sqrt(static_cast<float>(q.t.cols() / heads));
    return {.q = q.t, .k = k.t, .v = v.t, .out = out.t, .heads = heads, .scale = scale, .begins = begins};
  }
};

TEST(SegmentAttention, IsTheDefinitionForEveryLength) {
  // Of one row, of an item's queries, of a strip of keys, each and one more; and none at all.
  const std::vector<int64_t> begins = {0, 1, 4, 68, 68, 133, 261, 390};
  for (const DType type : kFloats)
    for (const int head_dim : {16, 80, 128}) {
      std::mt19937 rng(64);
      const Heads heads(rng, type, begins.back(), 2 * head_dim);
      Owned want(type, begins.back(), 2 * head_dim);
      SegmentAttention reference = heads.over(begins, 2);
      reference.out = want.t;
      reference::attend_segments(reference);
      for (const CpuIsa isa : vector_isas()) {
        Machine machine(isa);
        attend_segments(machine.exec, heads.over(begins, 2));
        // Where products are of bf16, so are the exponentials.
        const float absolute = type == DType::kF32 ? 2e-6f : 8e-3f;
        ASSERT_TRUE(near(heads.out.t, want.t, relative_error(type), absolute))
            << name_of(isa) << " " << head_dim;
      }
    }
}

TEST(SegmentAttention, ASegmentsBitsDependOnItAlone) {
  for (const DType type : kFloats)
    for (const CpuIsa isa : vector_isas())
      for (const int threads : {1, 3}) {
        std::mt19937 rng(65);
        const std::vector<int64_t> begins = {0, 5, 140, 300};
        const Heads all(rng, type, 300, 160);
        Machine machine(isa, threads);
        attend_segments(machine.exec, all.over(begins, 2));
        for (size_t s = 0; s + 1 < begins.size(); ++s) {
          const int64_t rows = begins[s + 1] - begins[s];
          Owned alone(type, rows, 160);
          SegmentAttention one = all.over({}, 2);
          for (Tensor* tensor : {&one.q, &one.k, &one.v}) *tensor = tensor->rows_at(begins[s], rows);
          const std::vector<int64_t> own = {0, rows};
          one.out = alone.t;
          one.begins = own;
          attend_segments(machine.exec, one);
          ASSERT_TRUE(same_rows(alone, 0, all.out, begins[s], rows)) << name_of(isa) << " " << s;
        }
      }
}

TEST(SegmentAttention, TakesTheScratchThatItSays) {
  std::mt19937 rng(66);
  const std::vector<int64_t> begins = {0, 1000, 1100};
  for (const DType type : kFloats)
    for (const CpuIsa isa : vector_isas()) {
      const Heads heads(rng, type, 1100, 128);
      Machine machine(isa);
      attend_segments(machine.exec, heads.over(begins, 1));
      const SegmentScratchQuery query{
          .isa = isa, .threads = 2, .type = type, .rows = 1100, .longest = 1000, .width = 128};
      EXPECT_EQ(static_cast<int64_t>(machine.scratch.capacity_bytes()), segment_scratch_bytes(query));
    }
}

}  // namespace
}  // namespace sparrow::ops
