// SPDX-License-Identifier: Apache-2.0
// The device sampler against the engine's Sampler: the same id or the same refusal for every row. The two sum
// weights in different orders, which may turn a draw that falls within 1e-10 of a border: none of these does.
#include "ops/cuda/sample/sample.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "cuda/ops/sample_device.h"
#include "device/cuda/stream.h"

namespace sparrow::ops::cuda {
namespace {

using namespace test_bed;

void expect_same(const Bed& bed) {
  Device device(bed);
  const std::vector<Drawn> want = bed.on_cpu(), got = device.run();
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i], want[i]) << "draw " << i;
  EXPECT_TRUE(device.logits_unchanged());
}

// One of the ways people sample, with everything else at random.
SamplingParams random_params(std::mt19937& rng, int vocabulary) {
  const double temperatures[] = {0, 0.3, 0.7, 1, 1, 1.5}, tops[] = {1, 1, 0.99, 0.9, 0.5, 0.05};
  const int counts[] = {0, 0, 1, 5, 40, 1000, vocabulary};
  const double floors[] = {0, 0, 0, 0.02, 0.2};
  SamplingParams p;
  p.temperature = temperatures[rng() % 6];
  p.top_p = tops[rng() % 6];
  p.top_k = counts[rng() % 7];
  p.min_p = floors[rng() % 5];
  p.seed = rng();
  const auto some_id = [&] { return static_cast<int32_t>(rng() % vocabulary); };
  if (rng() % 4 == 0) {
    p.repetition_penalty = 1.3, p.presence_penalty = 0.4, p.frequency_penalty = 0.2;
  }
  if (rng() % 6 == 0)
    for (int i = 0; i < 20; ++i) p.logit_bias.push_back({some_id(), float(int(rng() % 200) - 100) / 10});
  if (rng() % 8 == 0)
    for (int i = 0; i < 50; ++i) p.allowed_ids.push_back(some_id());
  if (rng() % 6 == 0)
    for (int i = 0; i < 10; ++i) p.banned_ids.push_back(some_id());
  return p;
}

void add_random_draws(Bed& bed, std::mt19937& rng, int count) {
  const int rows = static_cast<int>(bed.logits.size() / bed.row_stride);
  for (int i = 0; i < count; ++i) {
    Draw& draw = bed.add(static_cast<int>(rng() % rows), random_params(rng, bed.vocabulary));
    std::vector<int32_t> prompt(rng() % 300);
    for (auto& id : prompt) id = static_cast<int32_t>(rng() % bed.vocabulary);
    draw.counts.add_prompt(prompt);
    for (int j = 0; j < 100; ++j) draw.counts.add_output(static_cast<int32_t>(rng() % bed.vocabulary));
    if (rng() % 8 == 0) draw.more_banned = {static_cast<int32_t>(rng() % bed.vocabulary)};
    if (rng() % 4 != 0) continue;
    // Few ids, about half of them, or nearly all.
    draw.mask.resize((bed.vocabulary + 31) / 32);
    const int kind = static_cast<int>(rng() % 3);
    for (uint32_t& word : draw.mask) {
      const auto one = static_cast<uint32_t>(rng()), other = static_cast<uint32_t>(rng());
      word = kind == 0 ? one & other & (one >> 7) : kind == 1 ? one : one | other;
    }
  }
}

TEST(SampleOnDevice, TenThousandRandomDrawsAreThoseOfTheSampler) {
  std::mt19937 rng(1);
  Bed bed(8192);
  for (const float spread : {0.0f, 0.1f, 1.0f, 2.0f, 4.0f, 10.0f})
    for (int i = 0; i < 4; ++i) bed.add_row(normal_row(rng, bed.vocabulary, spread));
  add_random_draws(bed, rng, 10000);
  const std::vector<Drawn> want = bed.on_cpu(), got = Device(bed).run();
  int different = 0;
  for (size_t i = 0; i < want.size(); ++i) different += got[i] != want[i];
  std::printf("  %d of %zu draws differ\n", different, want.size());
  EXPECT_EQ(different, 0);
}

class SampleOnDeviceSizes : public ::testing::TestWithParam<int> {};

TEST_P(SampleOnDeviceSizes, DrawsAreThoseOfTheSampler) {
  std::mt19937 rng(2);
  for (const int rows : {1, 64, 256}) {
    Bed bed(GetParam());
    for (const float spread : {0.5f, 3.0f, 8.0f}) bed.add_row(normal_row(rng, bed.vocabulary, spread));
    add_random_draws(bed, rng, rows);
    expect_same(bed);
  }
}

TEST_P(SampleOnDeviceSizes, RowsThatAreNotAlignedGiveTheSame) {
  std::mt19937 rng(3);
  Bed bed(GetParam(), GetParam() + 3);
  for (int i = 0; i < 3; ++i) bed.add_row(normal_row(rng, bed.vocabulary, 2));
  add_random_draws(bed, rng, 20);
  for (int i = 0; i < 3; ++i) bed.add(i, {.temperature = 0});
  expect_same(bed);
}

TEST_P(SampleOnDeviceSizes, PlainGreedyTakesTheFastKernelWithTheSameResult) {
  std::mt19937 rng(4);
  for (const int64_t stride : {0, GetParam() + 1}) {
    Bed bed(GetParam(), stride);
    for (int i = 0; i < 40; ++i) {
      std::vector<float> row = normal_row(rng, bed.vocabulary, 1);
      if (i % 2 == 1)
        for (auto& x : row) x = std::round(x);  // many ties
      bed.add(bed.add_row(row), {.temperature = 0});
    }
    EXPECT_TRUE(bed.batch().plain_greedy());
    expect_same(bed);
    EXPECT_EQ(Device(bed).run(true), Device(bed).run(false));
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabulary, SampleOnDeviceSizes, ::testing::Values(1, 2, 320, 8192, 200064),
                         [](const auto& info) { return std::to_string(info.param); });

TEST(SampleOnDevice, OddRowsUnderEveryFilter) {
  for (const int size : {5, 3000, 50000}) {
    Bed bed(size);
    for (const std::vector<float>& row : odd_rows(size)) bed.add_row(row);
    for (int row = 0; row < 8; ++row)
      for (const double temperature : {0.0, 1e-6, 0.8, 1e6})
        for (const auto& [top_k, top_p, min_p] : {std::tuple{0, 1.0, 0.0},
                                                  {1, 1.0, 0.0},
                                                  {size / 2 + 1, 1.0, 0.0},
                                                  {size, 1.0, 0.0},
                                                  {size + 7, 0.999, 0.0},
                                                  {0, 1e-6, 0.0},
                                                  {0, 0.6, 0.0},
                                                  {0, 1.0, 1.0},
                                                  {40, 0.9, 0.3}})
          bed.add(row,
                  {.temperature = temperature, .top_p = top_p, .top_k = top_k, .min_p = min_p, .seed = 9});
    expect_same(bed);
  }
}

TEST(SampleOnDevice, LogitsThatAreNotNumbersAreRefusedWhereverTheyStand) {
  constexpr int kSize = 5000;
  Bed bed(kSize);
  for (const float bad : {NAN, -NAN, kInfinity})
    for (const int at : {0, 1, 2499, kSize - 1}) {
      std::vector<float> row(kSize, 1.0f);
      row[at] = bad;
      const int number = bed.add_row(row);
      bed.add(number, {.temperature = 0});
      bed.add(number, {.temperature = 1, .top_p = 0.9});
      bed.add(number, {.temperature = 1, .banned_ids = {at}});
    }
  const int nothing = bed.add_row(std::vector<float>(kSize, -kInfinity));
  bed.add(nothing, {.temperature = 0});
  bed.add(nothing, {.temperature = 1});
  expect_same(bed);
  Bed greedy(kSize);
  greedy.logits = bed.logits;
  for (int row = 0; row <= nothing; ++row) greedy.add(row, {.temperature = 0});
  expect_same(greedy);
}

TEST(SampleOnDevice, AllowedAndBannedIds) {
  constexpr int kSize = 320;
  std::mt19937 rng(6);
  Bed bed(kSize);
  std::vector<int32_t> all(kSize);
  for (int i = 0; i < kSize; ++i) all[i] = i;
  std::vector<float> row = normal_row(rng, kSize, 2);
  row[7] = -kInfinity;
  bed.add_row(row);
  for (const double temperature : {0.0, 1.0}) {
    bed.add(0, {.temperature = temperature, .banned_ids = all});     // all banned
    bed.add(0, {.temperature = temperature, .allowed_ids = {319}});  // one allowed
    bed.add(0, {.temperature = temperature, .allowed_ids = {5, 5, 9}, .banned_ids = {5}});
    bed.add(0, {.temperature = temperature, .allowed_ids = {5}, .banned_ids = {5}});  // nothing left
    bed.add(0, {.temperature = temperature, .allowed_ids = {7}});                     // only -infinity
    bed.add(0, {.temperature = temperature, .top_p = 0.5, .allowed_ids = all});
    bed.add(0, {.temperature = temperature}).more_banned = {1, 2, 3, 1};
  }
  expect_same(bed);
}

TEST(SampleOnDevice, HugePenaltiesAndBiasesStayInRangeAndInOrder) {
  constexpr int kSize = 2000;
  std::mt19937 rng(7);
  Bed bed(kSize);
  bed.add_row(normal_row(rng, kSize, 5));
  for (const double temperature : {0.0, 0.7})
    for (const double penalty : {1e-30, 0.5, 1e30, 1e300}) {
      for (const double presence : {-1e300, 0.0, 1e300}) {
        SamplingParams p{
            .temperature = temperature, .repetition_penalty = penalty, .presence_penalty = presence};
        p.frequency_penalty = -0.5;
        p.logit_bias = {{3, 3e38f}, {3, 3e38f}, {4, -3e38f}, {3, -3e38f}, {5, 1.0f}};
        Draw& draw = bed.add(0, p);
        for (int i = 0; i < 500; ++i) draw.counts.add_output(static_cast<int32_t>(rng() % kSize));
        draw.counts.add_prompt(std::vector<int32_t>{1, 2, 3, 4, 5, 6});
      }
    }
  expect_same(bed);
}

TEST(SampleOnDevice, RepeatsBitForBitAndRunsInAGraph) {
  std::mt19937 rng(8);
  Bed bed(200064);
  for (int i = 0; i < 8; ++i) bed.add_row(normal_row(rng, bed.vocabulary, 3));
  add_random_draws(bed, rng, 64);
  Device device(bed);
  const std::vector<Drawn> first = device.run();
  for (int i = 0; i < 5; ++i) ASSERT_EQ(device.run(), first);
  const Stream stream;
  const Graph graph = Graph::capture(stream, [&] { device.launch(stream.get(), false); });
  graph.launch(stream.get());
  EXPECT_EQ(device.result(), first);
}

TEST(SampleBatchTest, CountsItsBytesAndForgetsThemWhenCleared) {
  SampleBatch batch;
  EXPECT_TRUE(batch.plain_greedy());
  batch.add_row({.temperature = 0});
  EXPECT_TRUE(batch.plain_greedy());
  const std::vector<int32_t> banned = {1, 2, 3};
  batch.add_row({.temperature = 0, .banned = banned});
  EXPECT_FALSE(batch.plain_greedy());
  EXPECT_EQ(batch.bytes(), 2 * sizeof(PackedRow) + 3 * sizeof(int32_t));
  std::vector<char> bytes(batch.bytes());
  batch.pack(bytes.data());
  PackedRow row;
  std::memcpy(&row, bytes.data() + sizeof(PackedRow), sizeof row);
  EXPECT_EQ(row.num_banned, 3);
  int32_t first = 0;
  std::memcpy(&first, bytes.data() + row.first_word * sizeof(int32_t), sizeof first);
  EXPECT_EQ(first, 1);
  batch.clear();
  EXPECT_EQ(batch.bytes(), 0u);
  EXPECT_TRUE(batch.plain_greedy());
  // Seen ids count for nothing where no penalty is set.
  const std::vector<SeenId> seen = {{1, 2}};
  batch.add_row({.temperature = 0, .seen = seen});
  EXPECT_TRUE(batch.plain_greedy());
}

}  // namespace
}  // namespace sparrow::ops::cuda
