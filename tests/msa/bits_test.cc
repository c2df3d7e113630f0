// SPDX-License-Identifier: Apache-2.0
// A query's bits depend on the query alone: the same for whole prompts, chunks, decode, any batch, any number
// of workers and any order of pages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/msa_cases.h"

namespace msa::testing {
namespace {

constexpr Selection kSelection = {.top_k = 4};

struct Outputs {
  std::vector<int32_t> selected;
  std::vector<uint8_t> sparse, dense;

  void append(const Outputs& other) {
    selected.insert(selected.end(), other.selected.begin(), other.selected.end());
    sparse.insert(sparse.end(), other.sparse.begin(), other.sparse.end());
    dense.insert(dense.end(), other.dense.begin(), other.dense.end());
  }
};

Outputs run(Sequences& sequences, const std::vector<Chunk>& chunks, Isa isa, int workers) {
  const Step step = sequences.step(chunks);
  Outputs outputs;
  outputs.selected = run_index(sequences, step, kSelection, isa, workers);
  outputs.sparse = run_attend(sequences, step, outputs.selected.data(), kSelection.top_k, isa, workers);
  outputs.dense = run_attend(sequences, step, nullptr, kSelection.top_k, isa, workers);
  return outputs;
}

// Queries [first, end) of sequence 0 in chunks; keys after each chunk are NaN while it runs.
Outputs run_chunked(const CaseOptions& options, int first, int end, int chunk, Isa isa, int workers) {
  Sequences sequences(options);
  Outputs outputs;
  for (int at = first; at < end; at += chunk)
    outputs.append(run(sequences, {{0, at, std::min(chunk, end - at)}}, isa, workers));
  return outputs;
}

void expect_same(const Outputs& actual, const Outputs& expected, const std::string& what) {
  EXPECT_TRUE(actual.selected == expected.selected) << what << ": selection";
  EXPECT_TRUE(actual.sparse == expected.sparse) << what << ": sparse attention";
  EXPECT_TRUE(actual.dense == expected.dense) << what << ": dense attention";
}

struct Combination {
  Isa isa;
  Type type;
  std::string name() const { return std::string(name_of(isa)) + (type == Type::kF32 ? " f32 " : " bf16 "); }
};

std::vector<Combination> combinations() {
  std::vector<Combination> all;
  for (const Isa isa : fast_isas())
    for (const Type type : {Type::kBF16, Type::kF32})
      if (isa < Isa::kAvx512Bf16 || type == Type::kBF16) all.push_back({isa, type});
  return all;
}

TEST(Bits, AreTheSameForAnyChunking) {
  for (const Combination& c : combinations()) {
    const CaseOptions options = {
        .type = c.type, .heads = {2, 2}, .lengths = {1100}, .seed = 41, .query_gain = 20};
    const Outputs whole = run_chunked(options, 0, 1100, 1100, c.isa, 1);
    for (const int chunk : {7, 128, 1000})
      expect_same(run_chunked(options, 0, 1100, chunk, c.isa, 2), whole, c.name() + std::to_string(chunk));
  }
}

TEST(Bits, OfDecodeAreThoseOfPrefill) {
  for (const Combination& c : combinations()) {
    const CaseOptions options = {
        .type = c.type, .heads = {16, 1}, .lengths = {800}, .seed = 43, .query_gain = 20};
    expect_same(run_chunked(options, 600, 800, 1, c.isa, 1), run_chunked(options, 600, 800, 200, c.isa, 1),
                c.name());
  }
}

// A block packs its keys and values for one query in another place than for several.
TEST(Bits, OfOneAndOfTwoQueriesAreThoseOfManyForEveryNumberOfHeads) {
  for (const Combination& c : combinations())
    for (const HeadShape heads : {HeadShape{3, 3}, HeadShape{7, 1}, HeadShape{30, 2}, HeadShape{24, 1}}) {
      const CaseOptions options = {
          .type = c.type, .heads = heads, .lengths = {700}, .seed = 45, .query_gain = 20};
      const Outputs many = run_chunked(options, 630, 660, 30, c.isa, 1);
      for (const int chunk : {1, 2})
        expect_same(run_chunked(options, 630, 660, chunk, c.isa, 1), many,
                    c.name() + std::to_string(heads.query_heads) + " heads, by " + std::to_string(chunk));
    }
}

// Columns are scored in tiles of 8, 4, 2 and 1, as many as a chunk has. The blocks' scores here are sums of
// the same products in other orders: only rounding decides which are chosen.
TEST(Bits, OfIndexScoresAreTheSameInEveryTile) {
  constexpr int kBlocks = 24, kLength = kBlocks * kBlock, kFirst = kLength - 15;
  for (const Combination& c : combinations()) {
    Sequences sequences({.type = c.type, .heads = {1, 1}, .lengths = {kLength}, .seed = 67});
    for (int token = 0; token < kLength; ++token)
      for (int channel = 0; channel < kHeadDim; ++channel) {
        const int turned = (channel + 5 * (token / kBlock)) % kHeadDim;
        const float x = std::ldexp(static_cast<float>(turned * 37 % 128 + 129), turned % 12 - 13);
        sequences.set_index_key(0, token, channel, token % kBlock == 0 ? x : 0);
      }
    for (int token = kFirst; token < kLength; ++token)
      for (int channel = 0; channel < kHeadDim; ++channel)
        sequences.set_index_query(0, token, 0, channel, 1.2890625f);
    const auto choose = [&](int chunk) {
      std::vector<int32_t> chosen;
      for (int at = kFirst; at < kLength; at += chunk) {
        const Step step = sequences.step({{0, at, std::min(chunk, kLength - at)}});
        const std::vector<int32_t> some = run_index(sequences, step, {.top_k = 12}, c.isa);
        chosen.insert(chosen.end(), some.begin(), some.end());
      }
      return chosen;
    };
    const std::vector<int32_t> whole = choose(15);
    for (const int chunk : {1, 2, 3, 4, 7}) EXPECT_EQ(choose(chunk), whole) << c.name() << chunk;
  }
}

TEST(Bits, OfDecodeAreThoseOfPrefillAcrossSegments) {
  for (const Combination& c : combinations()) {
    const CaseOptions options = {
        .type = c.type, .heads = {2, 1}, .lengths = {16600}, .seed = 47, .query_gain = 20};
    Sequences sequences(options);
    const Outputs whole = run(sequences, {{0, 16382, 20}}, c.isa, 1);
    Outputs decoded;
    for (int i = 0; i < 20; ++i) decoded.append(run(sequences, {{0, 16382 + i, 1}}, c.isa, i % 4 + 1));
    expect_same(decoded, whole, c.name());
  }
}

TEST(Bits, AreTheSameForAnyNumberOfWorkers) {
  for (const Combination& c : combinations()) {
    Sequences sequences({.type = c.type, .heads = {4, 2}, .lengths = {9000}, .seed = 53});
    const Outputs one = run(sequences, {{0, 8970, 24}}, c.isa, 1);
    for (const int workers : {2, 3, 8})
      expect_same(run(sequences, {{0, 8970, 24}}, c.isa, workers), one, c.name() + std::to_string(workers));
  }
}

TEST(Bits, AreTheSameForAnyOrderOfPages) {
  for (const Combination& c : combinations()) {
    CaseOptions options = {.type = c.type, .heads = {4, 2}, .lengths = {1000}, .seed = 59};
    const Outputs one = run_chunked(options, 900, 1000, 100, c.isa, 1);
    options.page_seed = 2;
    expect_same(run_chunked(options, 900, 1000, 100, c.isa, 1), one, c.name());
  }
}

TEST(Bits, AreTheSameAloneAndInABatch) {
  for (const Combination& c : combinations()) {
    Sequences sequences({.type = c.type, .heads = {4, 2}, .lengths = {900, 300, 1300}, .seed = 61});
    const std::vector<Chunk> chunks = {{2, 1299, 1}, {0, 800, 100}, {1, 299, 1}, {1, 100, 30}};
    Outputs alone;
    for (const Chunk& chunk : chunks) alone.append(run(sequences, {chunk}, c.isa, 1));
    expect_same(run(sequences, chunks, c.isa, 3), alone, c.name());
  }
}

}  // namespace
}  // namespace msa::testing
