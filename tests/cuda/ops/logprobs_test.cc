// SPDX-License-Identifier: Apache-2.0
// Log-probabilities on the device against logprobs_of(): the same ids in the same order.
#include <gtest/gtest.h>

#include "cuda/ops/sample_device.h"

namespace sparrow::ops::cuda {
namespace {

using namespace test_bed;

TEST(LogprobsOnDevice, AreThoseOfTheEngine) {
  for (const int size : {1, 2, 320, 8192, 200064}) {
    std::mt19937 rng(9);
    Bed bed(size);
    for (const std::vector<float>& row : odd_rows(size)) bed.add_row(row);
    for (const float spread : {0.5f, 3.0f}) bed.add_row(normal_row(rng, size, spread));
    std::vector<LogprobsRow> wanted;
    for (int row = 0; row < 10; ++row) {
      bed.add(row, {.temperature = 0});
      for (const int num_top : {0, 1, 5, 20, 128})
        wanted.push_back({row, rng() % 2 ? -1 : static_cast<int32_t>(rng() % size), row, num_top});
    }
    Device device(bed);
    const std::vector<Drawn> drawn = device.run();
    const DeviceArray<LogprobsRow> wanted_device(wanted);
    DeviceArray<float> logprob(wanted.size()), top_logprobs(wanted.size() * kMaxLogprobs);
    DeviceArray<int32_t> rank(wanted.size()), top_ids(wanted.size() * kMaxLogprobs);
    logprobs({.logits = device.logits(),
              .row_stride = bed.row_stride,
              .wanted = wanted_device.data(),
              .sampled_ids = device.ids(),
              .logprob = logprob.data(),
              .rank = rank.data(),
              .top_ids = top_ids.data(),
              .top_logprobs = top_logprobs.data(),
              .rows = static_cast<int>(wanted.size()),
              .top_stride = kMaxLogprobs,
              .vocabulary = size},
             nullptr);
    const std::vector<float> got = logprob.download(), got_top = top_logprobs.download();
    const std::vector<int32_t> got_rank = rank.download(), got_ids = top_ids.download();
    // A double that lies between two floats may be rounded to either after another order of summation.
    const auto near = [](float a, float b) {
      return a == b || (std::isnan(a) && std::isnan(b)) || std::fabs(a - b) <= 2e-7f * std::fabs(b);
    };
    for (size_t i = 0; i < wanted.size(); ++i) {
      const LogprobsRow& w = wanted[i];
      const int32_t id = w.id >= 0 ? w.id : drawn[w.sampled].id;
      const TokenLogprobs want = logprobs_of(
          {bed.logits.data() + w.logits_row * bed.row_stride, static_cast<size_t>(size)}, id, w.num_top);
      ASSERT_TRUE(near(got[i], want.token.logprob)) << got[i] << " for " << want.token.logprob;
      ASSERT_EQ(got_rank[i], id < 0 ? 0 : want.rank);  // nothing is drawn from a row that is not finite
      for (size_t k = 0; k < want.top.size(); ++k) {
        ASSERT_EQ(got_ids[i * kMaxLogprobs + k], want.top[k].id)
            << "size " << size << ", row " << w.logits_row;
        ASSERT_TRUE(near(got_top[i * kMaxLogprobs + k], want.top[k].logprob));
      }
    }
  }
}

TEST(LogprobsOnDevice, OfARowThatWasRefusedIsNotANumber) {
  Bed bed(100);
  bed.add(bed.add_row(std::vector<float>(100, NAN)), {.temperature = 0});
  Device device(bed);
  EXPECT_EQ(device.run()[0].status, SampleStatus::kNotFinite);
  const DeviceArray<LogprobsRow> wanted(std::vector<LogprobsRow>{{0, -1, 0, 20}});
  DeviceArray<float> logprob(1), top_logprobs(kMaxLogprobs);
  DeviceArray<int32_t> rank(1), top_ids(kMaxLogprobs);
  logprobs({.logits = device.logits(),
            .row_stride = bed.row_stride,
            .wanted = wanted.data(),
            .sampled_ids = device.ids(),
            .logprob = logprob.data(),
            .rank = rank.data(),
            .top_ids = top_ids.data(),
            .top_logprobs = top_logprobs.data(),
            .rows = 1,
            .top_stride = kMaxLogprobs,
            .vocabulary = 100},
           nullptr);
  EXPECT_TRUE(std::isnan(logprob.download()[0]));
  EXPECT_EQ(rank.download()[0], 0);
}

}  // namespace
}  // namespace sparrow::ops::cuda
