// SPDX-License-Identifier: Apache-2.0
// What a rank allocates, counted without a GPU: buffers hold every step within their limits, and parts do not
// overlap.
#include <gtest/gtest.h>

#include <numeric>

#include "engine/memory/gpu_memory.h"
#include "engine/memory/step_layout.h"
#include "engine/request.h"
#include "ops/sample_batch.h"
#include "support/m3_config.h"

namespace sparrow {
namespace {

using ops::cuda::SampleBatch;

ModelConfig m3() {
  return parse_config(test::m3_config_json(), "").value();
}

TEST(DrawBuffer, HoldsEveryStepWithinItsLimits) {
  for (const int max_draws : {1, 16, 256})
    for (const int max_logits : {1, 256, 512}) {
      const DrawBuffer buffer({max_draws, max_logits, 1000, 2});
      for (const int draws : {0, 1, max_draws})
        for (const int wanted : {0, 1, std::max(max_draws, max_logits)})
          for (const int top : {0, 5, kMaxTopLogprobs}) {
            const DrawLayout l = buffer.lay_out(draws, wanted, top);
            const struct {
              size_t offset, bytes;
            } parts[] = {{l.wanted, size_t(16) * wanted},
                         {l.batch, buffer.batch_bytes},
                         {l.ids, size_t(4) * draws},
                         {l.status, size_t(4) * draws},
                         {l.logprob, size_t(4) * wanted},
                         {l.rank, size_t(4) * wanted},
                         {l.top_ids, size_t(4) * wanted * top},
                         {l.top_logprobs, size_t(4) * wanted * top},
                         {l.end, 0}};
            for (size_t i = 0; i + 1 < std::size(parts); ++i) {
              EXPECT_EQ(parts[i].offset % 16, 0u);
              EXPECT_LE(parts[i].offset + parts[i].bytes, parts[i + 1].offset) << "part " << i;
            }
            EXPECT_EQ(l.ids, buffer.results);
            EXPECT_LE(l.end, buffer.bytes);
          }
    }
}

// A draw with every list as long as a request may make it.
TEST(DrawBuffer, TakesTheLongestDrawThatARequestMayAskFor) {
  constexpr int kVocabulary = 5000, kEndIds = 3;
  std::vector<int32_t> all(kVocabulary), ends(kVocabulary + kEndIds);
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::pair<int32_t, float>> bias;
  std::vector<ops::cuda::SeenId> seen;
  for (const int32_t id : all) bias.emplace_back(id, 1.0f), seen.push_back({id, 1});
  const std::vector<uint32_t> mask((kVocabulary + 31) / 32);
  const ops::cuda::SampleSpec spec{.repetition_penalty = 2,
                                   .seen = seen,
                                   .bias = bias,
                                   .allowed = all,
                                   .banned = all,
                                   .more_banned = ends,
                                   .mask = mask};
  SampleBatch batch;
  batch.add_row(spec);
  EXPECT_EQ(SampleBatch::bytes_of(spec), batch.bytes());
  EXPECT_LE(batch.bytes(), DrawBuffer({1, 1, kVocabulary, kEndIds}).batch_bytes);

  // And that many are the most.
  SamplingParams params;
  params.logit_bias = bias;
  params.allowed_ids = params.banned_ids = all;
  EXPECT_TRUE(validate(params, kVocabulary).ok());
  const auto refusal = [](const SamplingParams& p) { return validate(p, kVocabulary).error().message; };
  SamplingParams more = params;
  more.allowed_ids.push_back(0);
  EXPECT_EQ(refusal(more), "allowed_token_ids holds 5001 entries, more than the 5000 ids of the vocabulary");
  more = params;
  more.logit_bias.emplace_back(0, 1.0f);
  EXPECT_EQ(refusal(more), "logit_bias holds 5001 entries, more than the 5000 ids of the vocabulary");
  more = params;
  more.banned_ids.push_back(0);
  EXPECT_EQ(refusal(more), "banned_token_ids holds 5001 entries, more than the 5000 ids of the vocabulary");
  Request request;
  request.prompts = {{1}};
  request.stop_ids = all;
  const RequestLimits limits{.vocab_size = kVocabulary, .max_model_tokens = 100, .cache_tokens = 1024};
  EXPECT_TRUE(validate(request, limits).ok());
  request.stop_ids.push_back(0);
  EXPECT_EQ(validate(request, limits).error().message,
            "stop_token_ids holds 5001 entries, more than the 5000 ids of the vocabulary");
}

TEST(SampleBatch, CountsAListThatNoPenaltyReadsAsNothing) {
  const std::vector<ops::cuda::SeenId> seen = {{1, 1}, {2, 3}};
  const ops::cuda::SampleSpec spec{.seen = seen};
  SampleBatch batch;
  batch.add_row(spec);
  EXPECT_EQ(SampleBatch::bytes_of(spec), batch.bytes());
}

TEST(StepLayout, IsDisjointAndEveryStepFits) {
  constexpr int kTokens = 512, kSequences = 64, kColumns = 100;
  const StepUploadBytes most(kTokens, kSequences, kColumns), of_two(kTokens, kSequences, kColumns, 2);
  EXPECT_EQ(most.table, size_t{4} * kSequences * kColumns);
  for (const int decodes : {0, 1, kSequences})
    for (const int prefills : {0, 1, kSequences - decodes}) {
      const int tokens = prefills > 0 ? kTokens - decodes : 0;
      for (const int logits : {0, 1, kTokens}) {
        const StepLayout l(
            {.decodes = decodes, .prefills = prefills, .prefill_tokens = tokens, .logits = logits});
        const auto rows = static_cast<size_t>(decodes + tokens);
        const struct {
          size_t offset, bytes;
        } parts[] = {{l.ids, 4 * rows},
                     {l.drawn_by, 4 * rows},
                     {l.positions, 4 * rows},
                     {l.slots, 8 * rows},
                     {l.seq_lens, size_t(4) * (decodes + prefills)},
                     {l.cu_seqlens, size_t(4) * (prefills + 1)},
                     {l.logit_rows, size_t(4) * logits},
                     {l.num_rows, 4},
                     {l.bytes, 0}};
        for (size_t i = 0; i + 1 < std::size(parts); ++i) {
          EXPECT_EQ(parts[i].offset % 16, 0u);
          EXPECT_LE(parts[i].offset + parts[i].bytes, parts[i + 1].offset) << "part " << i;
        }
        EXPECT_LE(l.bytes, most.metadata);
        const StepLayout two({.decodes = decodes,
                              .prefills = prefills,
                              .prefill_tokens = tokens,
                              .logits = logits,
                              .groups = {{decodes + tokens, logits}, {kTokens, kTokens}}});
        EXPECT_LE(two.logit_rows + size_t(4) * (logits + kTokens), two.num_rows);
        EXPECT_LE(two.num_rows + 8, two.bytes);
        EXPECT_LE(two.bytes, of_two.metadata);
      }
    }
}

TEST(GpuMemory, NamesEveryPartOnceAndAddsUp) {
  const GpuStepLimits limits{
      .max_step_tokens = 8192, .max_step_sequences = 256, .max_logits = 256, .max_context = 1048576};
  const GpuMemory memory = plan_gpu_memory(m3(), {.tp = 8}, limits, 132).value();
  int64_t sum = 0;
  for (const LedgerRow& row : memory.workspace.rows) {
    EXPECT_GT(row.bytes, 0) << row.name;
    EXPECT_EQ(memory.workspace.of(row.name), row.bytes) << row.name;
    sum += row.bytes;
  }
  EXPECT_EQ(sum, memory.workspace.bytes);
  EXPECT_EQ(memory.pinned_bytes, memory.workspace.of("step metadata") + memory.workspace.of("draws") +
                                     ops::cuda::kPeerReportBytes);
  const DrawBuffer draws(draw_limits(m3(), limits));
  EXPECT_EQ(memory.workspace.of("draws"), static_cast<int64_t>(2 * draws.bytes));
  EXPECT_EQ(memory.driver.of("captured steps"), kDriverGraphBytes);
}

TEST(GpuMemory, OfRanksOverNcclHasNoReportsOfKernelsAndLeavesRoomForNccl) {
  GpuStepLimits limits{
      .max_step_tokens = 8192, .max_step_sequences = 256, .max_logits = 256, .max_context = 131072};
  const GpuMemory in_node = plan_gpu_memory(m3(), {.tp = 8}, limits, 132).value();
  limits.nccl = true;
  const GpuMemory memory = plan_gpu_memory(m3(), {.tp = 8}, limits, 132).value();
  EXPECT_EQ(in_node.pinned_bytes - memory.pinned_bytes, ops::cuda::kPeerReportBytes);
  EXPECT_EQ(memory.driver.bytes - in_node.driver.bytes, kNcclOwnBytes);
  EXPECT_EQ(memory.weight_bytes, in_node.weight_bytes);
  int64_t sum = 0;
  for (const LedgerRow& row : memory.workspace.rows) sum += row.bytes;
  EXPECT_EQ(sum, memory.workspace.bytes);
  // One rank has nobody to talk to.
  EXPECT_EQ(plan_gpu_memory(m3(), {}, limits, 132)->driver.bytes, in_node.driver.bytes);
}

TEST(GpuMemory, GrowsWithEachLimit) {
  const auto bytes = [](const GpuStepLimits& limits) {
    return plan_gpu_memory(m3(), {.tp = 8}, limits, 132)->workspace.bytes;
  };
  const GpuStepLimits base{
      .max_step_tokens = 2048, .max_step_sequences = 64, .max_logits = 256, .max_context = 131072};
  GpuStepLimits more = base;
  more.max_step_tokens *= 2;
  EXPECT_GT(bytes(more), bytes(base));
  more = base, more.max_step_sequences *= 2;
  EXPECT_GT(bytes(more), bytes(base));
  more = base, more.max_logits *= 2;
  EXPECT_GT(bytes(more), bytes(base));
  more = base, more.max_context *= 2;
  EXPECT_GT(bytes(more), bytes(base));
  more = base, more.kv_dtype = DType::kF8E4M3;  // scales
  EXPECT_GT(bytes(more), bytes(base));
}

TEST(GpuMemory, WhatDoesNotFitIsToldBeforeItIsLoaded) {
  GpuMemory memory{.weight_bytes = int64_t{100} << 30};
  memory.workspace.add("draws", int64_t{2} << 30);
  EXPECT_TRUE(check_fits(memory, int64_t{102} << 30, "a card").ok());
  const Status status = check_fits(memory, (int64_t{102} << 30) - 1, "a card");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(
      status.error().message,
      "100.0 GiB of weights and 2.0 GiB of workspace do not fit into the 102.0 GiB that are free on a card: "
      "use more GPUs, or smaller steps");
}

TEST(GpuMemory, LimitsThatTheKernelsDoNotTakeAreNamed) {
  const GpuStepLimits limits{
      .max_step_tokens = 8192, .max_step_sequences = 5000, .max_logits = 256, .max_context = 4096};
  const auto memory = plan_gpu_memory(m3(), {.tp = 8}, limits, 132);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.error().message, "max_requests must be in [1, 4096], got 5000");
}

}  // namespace
}  // namespace sparrow
