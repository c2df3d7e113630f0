// SPDX-License-Identifier: Apache-2.0
// Attention on every instruction set against the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/msa_cases.h"

namespace msa::testing {
namespace {

constexpr int kLengths[] = {1, 127, 128, 129, 2047, 2048, 2049, 5000};

// Largest error of a row, relative to the row's largest element. bf16: p and the result are each rounded to 8
// bits.
double tolerance(Type type) {
  return type == Type::kF32 ? 1e-5 : 2e-2;
}

void expect_rows_near(const std::vector<uint8_t>& actual, const std::vector<uint8_t>& expected, Type type,
                      const std::string& what) {
  const std::vector<float> a = to_floats(type, actual), e = to_floats(type, expected);
  ASSERT_EQ(a.size(), e.size());
  for (size_t row = 0; row < a.size(); row += kHeadDim) {
    double largest = 0, error = 0;
    for (size_t i = row; i < row + kHeadDim; ++i) {
      ASSERT_TRUE(std::isfinite(e[i])) << what << ": reference, head row " << row / kHeadDim;
      ASSERT_TRUE(std::isfinite(a[i])) << what << ", head row " << row / kHeadDim;
      largest = std::max(largest, std::abs(double{e[i]}));
      error = std::max(error, std::abs(double{a[i]} - double{e[i]}));
    }
    ASSERT_LE(error, tolerance(type) * largest) << what << ", head row " << row / kHeadDim;
  }
}

void expect_all_near_reference(Sequences& sequences, const std::vector<Chunk>& chunks,
                               const int32_t* selected, int top_k, const std::string& what) {
  const Step step = sequences.step(chunks);
  const Type type = sequences.options().type;
  const std::vector<uint8_t> expected = run_attend(sequences, step, selected, top_k, Isa::kScalar);
  for (const Isa isa : fast_isas())
    expect_rows_near(run_attend(sequences, step, selected, top_k, isa), expected, type,
                     what + " on " + name_of(isa) + (type == Type::kF32 ? " f32" : " bf16"));
}

// A sparse run with a random selection and a dense run.
void expect_both_near_reference(Sequences& sequences, const std::vector<Chunk>& chunks, int top_k,
                                const std::string& what) {
  const std::vector<int32_t> selected =
      random_selection(sequences.step(chunks), sequences.options().heads.kv_heads, top_k, 11);
  expect_all_near_reference(sequences, chunks, selected.data(), top_k, what + " sparse");
  expect_all_near_reference(sequences, chunks, nullptr, top_k, what + " dense");
}

TEST(Attend, EqualsReferenceAtEveryLength) {
  for (const Type type : {Type::kBF16, Type::kF32})
    for (const int length : kLengths) {
      Sequences sequences({.type = type, .heads = {4, 1}, .lengths = {length}, .seed = 13});
      const int count = std::min(length, 5);
      expect_both_near_reference(sequences, {{0, length - count, count}}, 16,
                                 "length " + std::to_string(length));
    }
}

TEST(Attend, EqualsReferenceForEveryGroupSizeAndNumberOfKvHeads) {
  for (const int group : {1, 3, 4, 7, 8, 15, 16, 24})
    for (const int kv_heads : {1, 2, 4}) {
      const Type type = kv_heads == 2 ? Type::kF32 : Type::kBF16;
      Sequences sequences(
          {.type = type, .heads = {group * kv_heads, kv_heads}, .lengths = {400}, .seed = 17});
      expect_both_near_reference(sequences, {{0, 250, 12}}, 2,
                                 "group " + std::to_string(group) + " kv heads " + std::to_string(kv_heads));
    }
}

TEST(Attend, EqualsReferenceForSmallTopK) {
  for (const int top_k : {1, 4}) {
    Sequences sequences({.heads = {4, 2}, .lengths = {1200}, .seed = 19});
    expect_both_near_reference(sequences, {{0, 1150, 50}}, top_k, "top_k " + std::to_string(top_k));
  }
}

TEST(Attend, EqualsReferenceForSeveralRequestsWithSomeEmpty) {
  for (const Type type : {Type::kBF16, Type::kF32}) {
    Sequences sequences({.type = type, .heads = {4, 2}, .lengths = {300, 1, 900, 129}, .seed = 23});
    expect_both_near_reference(sequences, {{2, 899, 1}, {0, 280, 20}, {0, 0, 0}, {1, 0, 1}, {3, 100, 29}}, 4,
                               "batch");
  }
}

TEST(Attend, EqualsReferenceWhenScoresAreFarApart) {
  for (const Type type : {Type::kBF16, Type::kF32}) {
    Sequences sequences({.type = type,
                         .heads = {4, 1},
                         .lengths = {1500},
                         .seed = 29,
                         .query_gain = type == Type::kF32 ? 50.0f : 200.0f});
    expect_both_near_reference(sequences, {{0, 1460, 40}}, 8, "peaky");
  }
}

TEST(Attend, EqualsReferenceAcrossSegmentsOfALongDenseContext) {
  for (const Type type : {Type::kBF16, Type::kF32}) {
    Sequences sequences({.type = type, .heads = {2, 1}, .lengths = {16500}, .seed = 31, .query_gain = 8});
    expect_all_near_reference(sequences, {{0, 8190, 4}}, nullptr, 16, "one segment and a little");
    expect_all_near_reference(sequences, {{0, 16498, 2}}, nullptr, 16, "three segments");
  }
}

TEST(Attend, DenseIsSparseWithEveryBlockSelected) {
  Sequences sequences({.heads = {8, 2}, .lengths = {2048}, .seed = 37});
  const Step step = sequences.step({{0, 2000, 48}});
  for (const Isa isa : fast_isas()) {
    const std::vector<int32_t> selected = run_index(sequences, step, {.top_k = 16}, isa);
    EXPECT_EQ(run_attend(sequences, step, selected.data(), 16, isa),
              run_attend(sequences, step, nullptr, 16, isa))
        << name_of(isa);
  }
}

}  // namespace
}  // namespace msa::testing
