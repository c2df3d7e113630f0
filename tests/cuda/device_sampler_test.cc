// SPDX-License-Identifier: Apache-2.0
// The device sampler's buffers: draws that do not fit them together go in turns, with the same result.
#include "engine/cuda/device_sampler.h"

#include <gtest/gtest.h>

#include <random>

#include "cuda/device_array.h"

namespace sparrow {
namespace {

constexpr int kVocabulary = 100'000, kDraws = 5;

TEST(DeviceSampler, DrawsInTurnsWhatDoesNotFitAtOnce) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(size_t{kDraws} * kVocabulary);
  for (float& logit : logits) logit = normal(random);
  const test::DeviceArray<float> device_logits(logits);
  const DeviceLogits rows{device_logits.data(), kVocabulary};

  // Lists of nearly the whole vocabulary, other ones for each draw.
  std::vector<SamplingParams> params(kDraws);
  std::vector<TokenCounts> counts(kDraws);
  std::vector<DrawRequest> draws;
  size_t list_bytes = 0;
  for (int i = 0; i < kDraws; ++i) {
    SamplingParams& p = params[static_cast<size_t>(i)];
    p.temperature = i % 2 ? 0.8 : 0.0;
    p.seed = static_cast<uint64_t>(i);
    p.frequency_penalty = 0.5;
    for (int id = i; id < kVocabulary; id += 2) {
      counts[static_cast<size_t>(i)].add_output(id);
      p.logit_bias.emplace_back(id, 0.1f * static_cast<float>(i));
      if (id % 3 != 0) p.allowed_ids.push_back(id);
      if (id % 7 == 0) p.banned_ids.push_back(id);
    }
    list_bytes += 4 * (2 * size_t{kVocabulary} / 2 + 2 * p.logit_bias.size() + p.allowed_ids.size());
    draws.push_back({.row = i,
                     .sample = {.logits = {}, .params = p, .counts = &counts[static_cast<size_t>(i)]},
                     .num_top_logprobs = i % 3 == 0 ? std::optional<int>(4) : std::nullopt});
  }
  const DrawLimits limits{kDraws, kDraws, kVocabulary, 1};
  ASSERT_GT(list_bytes, DrawBuffer(limits).batch_bytes);

  Stream stream;
  DeviceSampler sampler = DeviceSampler::create(limits).value();
  sampler.start(rows, draws, stream.get());
  const int32_t* const device_ids = sampler.ids();
  const std::vector<Draw> together = sampler.finish();
  ASSERT_EQ(together.size(), draws.size());
  std::vector<int32_t> kept(kDraws);
  SPARROW_CUDA(cudaMemcpy(kept.data(), device_ids, kDraws * sizeof(int32_t), cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < draws.size(); ++i) {
    SCOPED_TRACE(i);
    sampler.start(rows, {&draws[i], 1}, stream.get());
    const std::vector<Draw> alone = sampler.finish();
    ASSERT_TRUE(alone[0].id.ok() && together[i].id.ok());
    EXPECT_EQ(together[i].id.value(), alone[0].id.value());
    EXPECT_EQ(kept[i], alone[0].id.value());
    ASSERT_EQ(together[i].logprobs.has_value(), alone[0].logprobs.has_value());
    if (!alone[0].logprobs) continue;
    EXPECT_EQ(together[i].logprobs->token.logprob, alone[0].logprobs->token.logprob);
    EXPECT_EQ(together[i].logprobs->rank, alone[0].logprobs->rank);
    ASSERT_EQ(together[i].logprobs->top.size(), 4u);
    EXPECT_EQ(together[i].logprobs->top[3].id, alone[0].logprobs->top[3].id);
  }
}

}  // namespace
}  // namespace sparrow
