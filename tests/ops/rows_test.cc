// SPDX-License-Identifier: Apache-2.0
// Embedding, norms, residual adds, rotary, cache stores, and the calls into the attention library.
#include <numeric>

#include "ops/ops_cases.h"

namespace sparrow::ops {
namespace {

constexpr float kEps = 1e-6f;
// A bf16 result may fall on the other side of a rounding boundary than the reference's: one unit in the last
// place. In f32 the sum of squares differs in its last bits.
float relative_error(DType type) {
  return type == DType::kBF16 ? 0x1p-7f : 2e-6f;
}

constexpr DType kFloats[] = {DType::kBF16, DType::kF32};

TEST(RmsNorm, IsTheDefinitionForEveryTypeAndLength) {
  for (const DType x_type : kFloats)
    for (const DType weight_type : kFloats)
      for (const DType out_type : kFloats)
        for (const int64_t columns : {1, 7, 16, 33, 128, 6144}) {
          std::mt19937 rng(40);
          const Owned x = random_tensor(rng, x_type, 5, columns, 3.0f, columns + 3);
          const Owned weight = random_tensor(rng, weight_type, 1, columns, 0.5f);
          Owned want(out_type, 5, columns);
          reference::rms_norm(x.t, weight.t, kEps, want.t);
          for (const CpuIsa isa : vector_isas()) {
            Machine machine(isa);
            Owned got(out_type, 5, columns);
            rms_norm(machine.exec, x.t, weight.t, kEps, got.t);
            ASSERT_TRUE(near(got.t, want.t, relative_error(out_type), 0.0f))
                << name_of(isa) << " " << columns;
          }
        }
}

TEST(RmsNorm, RowsAreBitExactInAnyBatch) {
  std::mt19937 rng(41);
  const Owned x = random_tensor(rng, DType::kBF16, 100, 999),
              weight = random_tensor(rng, DType::kBF16, 1, 999);
  for (const CpuIsa isa : vector_isas())
    for (const int threads : {1, 2, 3}) {
      Machine machine(isa, threads);
      Owned all(DType::kBF16, 100, 999), one(DType::kBF16, 1, 999);
      rms_norm(machine.exec, x.t, weight.t, kEps, all.t);
      for (const int64_t row : {0, 57, 99}) {
        rms_norm(machine.exec, x.t.rows_at(row, 1), weight.t, kEps, one.t);
        ASSERT_TRUE(same_rows(one, 0, all, row, 1)) << name_of(isa);
      }
    }
}

TEST(RmsNorm, ZerosStayZeroAndNaNStaysInItsRow) {
  std::mt19937 rng(42);
  Owned x = random_tensor(rng, DType::kF32, 3, 50);
  const Owned weight = random_tensor(rng, DType::kF32, 1, 50);
  for (int64_t c = 0; c < 50; ++c) reference::store(x.t, c, 0.0f);
  reference::store(x.t, 50 + 49, NAN);
  for (const CpuIsa isa : vector_isas()) {
    Machine machine(isa);
    Owned out(DType::kF32, 3, 50);
    rms_norm(machine.exec, x.t, weight.t, kEps, out.t);
    EXPECT_EQ(out.t.row<float>(0)[7], 0.0f);
    EXPECT_TRUE(std::isnan(out.t.row<float>(1)[0]));
    EXPECT_TRUE(std::isfinite(out.t.row<float>(2)[0]));
  }
}

TEST(AddRmsNorm, StoresTheRoundedSumAndNormalisesIt) {
  for (const DType type : kFloats) {
    std::mt19937 rng(43);
    const Owned residual = random_tensor(rng, type, 6, 100), delta = random_tensor(rng, type, 6, 100, 0.1f);
    const Owned weight = random_tensor(rng, DType::kBF16, 1, 100);
    const Owned sum = copy_of(residual);
    Owned want(type, 6, 100);
    reference::add_rms_norm(sum.t, delta.t, weight.t, kEps, want.t);
    for (const CpuIsa isa : vector_isas()) {
      Machine machine(isa);
      const Owned updated = copy_of(residual), added = copy_of(residual);
      Owned got(type, 6, 100);
      add_rms_norm(machine.exec, updated.t, delta.t, weight.t, kEps, got.t);
      add(machine.exec, added.t, delta.t);
      EXPECT_TRUE(same_rows(updated, 0, sum, 0, 6)) << name_of(isa);
      EXPECT_TRUE(same_rows(added, 0, sum, 0, 6)) << name_of(isa);
      EXPECT_TRUE(near(got.t, want.t, relative_error(type), 0.0f)) << name_of(isa);
      // The norm of the sum as stored, not of the unrounded one.
      Owned alone(type, 6, 100);
      rms_norm(machine.exec, updated.t, weight.t, kEps, alone.t);
      EXPECT_TRUE(same_rows(alone, 0, got, 0, 6)) << name_of(isa);
    }
  }
}

TEST(Embed, CopiesAndConvertsTheRowsOfTheIds) {
  std::mt19937 rng(44);
  const int32_t ids[] = {3, 0, 9, 3};
  for (const DType table_type : kFloats)
    for (const DType out_type : kFloats) {
      const Owned table = random_tensor(rng, table_type, 10, 37);
      Owned want(out_type, 4, 37);
      reference::embed(ids, table.t, want.t);
      EXPECT_EQ(reference::load(want.t, 2 * 37 + 5),
                out_type == DType::kBF16 ? to_float(to_bf16(reference::load(table.t, 9 * 37 + 5)))
                                         : reference::load(table.t, 9 * 37 + 5));
      for (const CpuIsa isa : vector_isas()) {
        Machine machine(isa);
        Owned got(out_type, 4, 37);
        embed(machine.exec, ids, table.t, got.t);
        EXPECT_TRUE(same_rows(got, 0, want, 0, 4)) << name_of(isa);
      }
    }
}

struct Tables {
  Owned cos, sin;
  Rotary rotary;
};

Tables make_tables(std::span<const int32_t> positions, std::span<const float> inv_freq, float factor = 1.0f) {
  const int64_t rows = static_cast<int64_t>(positions.size()), half = static_cast<int64_t>(inv_freq.size());
  Tables tables{Owned(DType::kF32, rows, half), Owned(DType::kF32, rows, half), {}};
  tables.rotary = {tables.cos.t, tables.sin.t};
  Machine machine(CpuIsa::kScalar, 1);
  rotary_table(machine.exec, positions, inv_freq, factor, tables.rotary);
  return tables;
}

TEST(RotaryTable, IsAccurateAtLargePositions) {
  const int32_t positions[] = {0, 1, 777, 1'000'000, 16'777'215};
  const float inv_freq[] = {1.0f, 0.6175287581f, 4.472135955e-4f, 3.2387155637e-7f};
  const Tables tables = make_tables(positions, inv_freq, 1.5f);
  for (int64_t r = 0; r < 5; ++r)
    for (int64_t i = 0; i < 4; ++i) {
      const long double angle = static_cast<long double>(static_cast<float>(positions[r]) * inv_freq[i]);
      EXPECT_NEAR(tables.cos.t.row<float>(r)[i], 1.5L * std::cos(angle), 1.5e-7);
      EXPECT_NEAR(tables.sin.t.row<float>(r)[i], 1.5L * std::sin(angle), 1.5e-7);
    }
}

TEST(HeadNormRope, NormalisesAndTurnsEveryHeadInPlace) {
  for (const DType type : kFloats)
    for (const int64_t half : {32, 5, 0}) {
      std::mt19937 rng(45);
      // Three heads in the middle of a wider row, as queries lie beside keys.
      Owned wide = random_tensor(rng, type, 4, 3 * 128 + 40);
      const Owned before = copy_of(wide);
      const Owned weight = random_tensor(rng, DType::kF32, 1, 128, 0.3f);
      std::vector<float> inv_freq(static_cast<size_t>(half));
      for (size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] = std::pow(0.5f, static_cast<float>(i));
      const int32_t positions[] = {0, 5, 1000, 999'999};
      const Tables tables = make_tables(positions, inv_freq);
      const auto middle = [](const Owned& x) {
        Tensor view = x.t;
        view.data = static_cast<char*>(view.data) + 8 * size_of(view.dtype);
        view.shape[1] = 3 * 128;
        return view;
      };
      const Owned want = copy_of(before);
      reference::head_norm_rope(middle(want), weight.t, kEps, tables.rotary);
      for (const CpuIsa isa : vector_isas()) {
        Machine machine(isa);
        const Owned got = copy_of(before), one = copy_of(before);
        head_norm_rope(machine.exec, middle(got), weight.t, kEps, tables.rotary);
        // Differences of two products: the last place of the larger one.
        EXPECT_TRUE(near(got.t, want.t, relative_error(type), 2e-6f)) << name_of(isa);
        const Rotary last{tables.cos.t.rows_at(3, 1), tables.sin.t.rows_at(3, 1)};
        head_norm_rope(machine.exec, middle(one).rows_at(3, 1), weight.t, kEps, last);
        EXPECT_TRUE(same_rows(one, 3, got, 3, 1)) << name_of(isa);
        EXPECT_TRUE(same_rows(one, 0, before, 0, 3)) << name_of(isa);
      }
    }
}

TEST(HeadNormRope, TurnsByTheAngleAndLeavesTheRestAlone) {
  // Position 1 and frequency pi/2: (a, b) becomes (-b, a).
  const float inv_freq[] = {1.57079637f};
  const int32_t positions[] = {1};
  const Tables tables = make_tables(positions, inv_freq);
  std::vector<float> weight(4, 0.0f), x = {1, 2, 3, 4};
  const float r = 1.0f / std::sqrt(7.5f);
  std::vector<CpuIsa> isas = vector_isas();
  isas.push_back(CpuIsa::kScalar);
  for (const CpuIsa isa : isas) {
    std::vector<float> y = x;
    Machine machine(isa, 1);
    head_norm_rope(machine.exec, Tensor(y.data(), DType::kF32, {1, 4}),
                   Tensor(weight.data(), DType::kF32, {4}), 0.0f, tables.rotary);
    EXPECT_NEAR(y[0], -2 * r, 1e-6) << name_of(isa);
    EXPECT_NEAR(y[1], 1 * r, 1e-6) << name_of(isa);
    EXPECT_NEAR(y[2], 3 * r, 1e-6) << name_of(isa);
    EXPECT_NEAR(y[3], 4 * r, 1e-6) << name_of(isa);
  }
}

TEST(StoreBlocks, PutsEveryHeadOfEveryRowIntoItsSlot) {
  constexpr int64_t kHeads = 2, kHeadStride = 2 * 128 * 128, kBlockStride = kHeads * kHeadStride;
  std::mt19937 rng(46);
  const Owned x = random_tensor(rng, DType::kBF16, 3, kHeads * 128, 1.0f, kHeads * 128 + 64);
  const int64_t slots[] = {2 * 128 + 127, 0, 128 + 5};
  Machine machine(detect_cpu_isa());
  std::vector<uint16_t> pages(static_cast<size_t>(3 * kBlockStride), 0xffff);
  store_blocks(machine.exec, x.t, pages.data(), kBlockStride, kHeadStride, slots);
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t h = 0; h < kHeads; ++h) {
      const int64_t at = slots[r] / 128 * kBlockStride + h * kHeadStride + slots[r] % 128 * 128;
      EXPECT_EQ(std::memcmp(pages.data() + at, x.row(r) + h * 256, 256), 0);
    }
  EXPECT_EQ(std::count(pages.begin(), pages.end(), 0xffff),
            static_cast<int64_t>(pages.size()) - 3 * kHeads * 128);
}

TEST(Attention, RunsTheLibraryOnThisExec) {
  constexpr int kTokens = 5;
  std::mt19937 rng(47);
  const Owned q = random_tensor(rng, DType::kF32, kTokens, 128),
              index_q = random_tensor(rng, DType::kF32, kTokens, 128);
  const Owned k_pages = random_tensor(rng, DType::kF32, 128, 128),
              kv_pages = random_tensor(rng, DType::kF32, 256, 128);
  const int32_t starts[] = {0, kTokens}, lengths[] = {kTokens}, table[] = {0};
  const msa::Plan plan{1, starts, lengths, table, 1};
  std::vector<int32_t> selected(kTokens * 2, 77), want_selected(kTokens * 2, 77);
  Owned out(DType::kF32, kTokens, 128), want(DType::kF32, kTokens, 128);

  msa::IndexParams index{.type = msa::Type::kF32, .heads = {1, 1}, .selection = {.top_k = 2}};
  index.q = index_q.t.data;
  index.k_pages = k_pages.t.data;
  msa::AttendParams params{.type = msa::Type::kF32, .heads = {1, 1}, .top_k = 2};
  params.q = q.t.data;
  params.kv_pages = kv_pages.t.data;
  for (const CpuIsa isa : {CpuIsa::kScalar, detect_cpu_isa()}) {
    Machine machine(isa);
    index.selected = selected.data();
    params.selected = selected.data();
    params.out = out.t.data;
    index_blocks(machine.exec, plan, index);
    attend(machine.exec, plan, params);
    const msa::Isa same = isa == CpuIsa::kScalar ? msa::Isa::kScalar : msa::detect_isa();
    const msa::Workers caller;
    index.selected = want_selected.data();
    params.selected = want_selected.data();
    params.out = want.t.data;
    std::vector<char> workspace(
        static_cast<size_t>(std::max(msa::index_workspace_bytes(plan, index, same, caller),
                                     msa::attend_workspace_bytes(plan, params, same, caller)) +
                            64));
    msa::index(plan, index, same, caller, workspace.data());
    msa::attend(plan, params, same, caller, workspace.data());
    EXPECT_EQ(selected, want_selected);
    EXPECT_TRUE(same_rows(out, 0, want, 0, kTokens)) << name_of(isa);
  }
}

}  // namespace
}  // namespace sparrow::ops
