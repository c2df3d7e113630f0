// SPDX-License-Identifier: Apache-2.0
// Plans on the device: a step of decode and prefill together against the scalar reference, through graphs,
// and what is refused.
#include <gtest/gtest.h>

#include "msa_gpu/plan_case.h"

namespace msa::sm90 {
namespace {

using gpu::Code;
using gpu::Plan;
using gpu::Status;

void run_sparse(const PlanCase& c) {
  PlanRun run(c);
  std::unique_ptr<Plan> plan;
  ASSERT_OK(Plan::create(c.config(), &plan));
  ASSERT_OK(plan->prepare(run.step(), nullptr));
  ASSERT_OK(plan->index(run.index_args(), nullptr));
  ASSERT_OK(plan->attend(run.attend_args(), nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(run.chosen.host(), c.attend.selected) << plan->describe();
  expect_matches_reference(c.attend, run.out.host());
}

class PlanHeads : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(PlanHeads, DecodeAndPrefillInOneStepMatchTheReference) {
  PlanShape s;
  s.kv_heads = std::get<0>(GetParam()), s.group = std::get<1>(GetParam());
  run_sparse(PlanCase(s));
}

INSTANTIATE_TEST_SUITE_P(All, PlanHeads,
                         testing::Combine(testing::Values(1, 2, 4), testing::Values(4, 8, 16)),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param) * std::get<1>(info.param)) + "on" +
                                  std::to_string(std::get<0>(info.param));
                         });

TEST(Plan, SeveralQueriesForEachRequestAndFewerBlocks) {
  PlanShape s;
  s.decode_queries = 4, s.top_k = 5;
  s.decode_lens = {4, 130, 2049, 0, 5000};
  run_sparse(PlanCase(s));
  s.decode_queries = 16, s.kv_heads = 4, s.top_k = 1;
  s.decode_lens = {16, 143, 2049};
  run_sparse(PlanCase(s));
}

TEST(Plan, AShortExtendTakesTheDecodeKernel) {
  PlanShape s;
  s.decode_lens = {}, s.prefill_lens = {5000, 130, 16}, s.prefill_queries = {16, 130, 16};
  run_sparse(PlanCase(s));
}

TEST(Plan, E4m3Caches) {
  PlanShape s;
  s.index_e4m3 = true;
  run_sparse(PlanCase(s));
  s.kv_e4m3 = s.scaled = true;
  run_sparse(PlanCase(s));
  s.kv_heads = 4, s.group = 8;
  run_sparse(PlanCase(s));
}

void run_dense(const PlanShape& s) {
  PlanCase c(s);
  PlanRun run(c);
  std::unique_ptr<Plan> plan;
  ASSERT_OK(Plan::create(c.config(), &plan));
  ASSERT_OK(plan->prepare(run.step(), nullptr));
  ASSERT_OK(plan->dense(run.dense_args(), nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  // Every visible block is the selection where top_k does not bind: the same reference serves.
  c.attend.shape.top_k = c.attend.max_blocks;
  c.attend.selected.assign(size_t(c.attend.total) * s.kv_heads * c.attend.max_blocks, -1);
  for (size_t r = 0; r < c.attend.seq_lens.size(); ++r)
    for (int row = c.attend.cu[r]; row < c.attend.cu[r + 1]; ++row)
      for (int h = 0; h < s.kv_heads; ++h)
        for (int b = 0; b * kBlock < c.attend.seq_lens[r] - c.attend.cu[r + 1] + row + 1; ++b)
          c.attend.selected[(size_t(row) * s.kv_heads + h) * c.attend.max_blocks + b] = b;
  expect_matches_reference(c.attend, run.out.host());
}

TEST(Plan, DenseAttentionMatchesTheReference) {
  for (const int kv_heads : {1, 4})
    for (const bool e4m3 : {false, true}) run_dense({.kv_heads = kv_heads, .kv_e4m3 = e4m3, .scaled = e4m3});
}

// Rows of a batch-invariant step have the bits that each has alone, as a decode of one query.
void expect_invariant(PlanShape s) {
  s.decode_lens = {1, 129, 0, 2049, 5000}, s.prefill_lens = {700, 2300}, s.prefill_queries = {300, 40};
  const PlanCase c(s);
  gpu::PlanConfig config = c.config();
  config.batch_invariant = true;
  std::unique_ptr<Plan> plan;
  ASSERT_OK(Plan::create(config, &plan));
  PlanRun run(c);
  for (const bool dense : {false, true}) {
    const auto attend = [&](gpu::AttendArgs args) {
      if (!dense) return plan->attend(args, nullptr);
      args.selected = nullptr;
      return plan->dense(args, nullptr);
    };
    run.out.poison(), run.chosen.poison();
    ASSERT_OK(plan->prepare(run.step(), nullptr));
    ASSERT_OK(plan->index(run.index_args(), nullptr));
    ASSERT_OK(attend(run.attend_args()));
    const std::vector<uint16_t> together = run.out.host();
    const std::vector<int32_t> chosen = run.chosen.host();
    EXPECT_EQ(chosen, c.attend.selected) << plan->describe();

    run.out.poison();
    const int64_t width = int64_t{s.kv_heads} * s.group * kHeadDim,
                  index_width = int64_t{s.kv_heads} * kHeadDim;
    for (size_t r = 0; r < c.attend.seq_lens.size(); ++r)
      for (int row = c.attend.cu[r]; row < c.attend.cu[r + 1]; ++row) {
        const Device<int32_t> length(std::vector<int32_t>{
            c.attend.seq_lens[r] == 0 ? 0 : c.attend.seq_lens[r] - c.attend.cu[r + 1] + row + 1});
        gpu::Step step;
        step.decode = {.num_requests = 1,
                       .total_queries = 1,
                       .max_queries = 1,
                       .seq_lens = length.data,
                       .block_table = run.table.data + r * c.attend.max_blocks,
                       .max_blocks = c.attend.max_blocks};
        gpu::IndexArgs index = run.index_args();
        index.q = run.index_q.data + row * index_width;
        index.selected = run.chosen.data + int64_t{row} * s.kv_heads * s.top_k;
        gpu::AttendArgs args = run.attend_args();
        args.q = run.q.data + row * width;
        args.out = run.out.data + row * width;
        args.selected = index.selected;
        ASSERT_OK(plan->prepare(step, nullptr));
        ASSERT_OK(plan->index(index, nullptr));
        ASSERT_OK(attend(args));
        ASSERT_CUDA(cudaDeviceSynchronize());
      }
    EXPECT_EQ(run.chosen.host(), chosen);
    EXPECT_EQ(run.out.host(), together) << (dense ? "dense" : "sparse");
  }
}

TEST(Plan, BatchInvariantRowsHaveTheSameBitsAlone) {
  expect_invariant({});
  expect_invariant({.kv_heads = 4, .group = 4, .top_k = 5});
  expect_invariant({.kv_e4m3 = true, .index_e4m3 = true, .scaled = true});
}

// Captures prepare and two layers' worth of operations, then replays them over other lengths.
TEST(Plan, AGraphReplaysWithTheMetadataOfItsTime) {
  PlanShape s;
  s.decode_lens = {700, 300, 1, 128}, s.prefill_lens = {500}, s.prefill_queries = {300};
  const PlanCase first(s);
  s.decode_lens = {129, 0, 640, 0};  // fewer keys, two requests gone
  const PlanCase second(s);
  ASSERT_LE(second.attend.max_blocks, first.attend.max_blocks);
  PlanRun run(first);
  std::unique_ptr<Plan> plan;
  ASSERT_OK(Plan::create(first.config(), &plan));
  cudaStream_t stream;
  ASSERT_CUDA(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  ASSERT_OK(plan->prepare(run.step(), stream));
  for (int layer = 0; layer < 2; ++layer) {
    ASSERT_OK(plan->index(run.index_args(), stream));
    ASSERT_OK(plan->attend(run.attend_args(), stream));
  }
  ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
  ASSERT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  const auto replay = [&](const PlanCase& c) {
    run.out.poison(), run.chosen.poison();
    ASSERT_CUDA(cudaGraphLaunch(exec, stream));
    ASSERT_CUDA(cudaStreamSynchronize(stream));
    EXPECT_EQ(run.chosen.host(), c.attend.selected);
    expect_matches_reference(c.attend, run.out.host());
  };
  replay(first);
  const std::vector<uint16_t> once = run.out.host();
  replay(first);
  EXPECT_EQ(once, run.out.host()) << "a replay must give the same bits";

  // The second case's contents and metadata, in the first one's memory and table width.
  std::vector<int32_t> table(first.attend.table.size(), 0);
  for (size_t r = 0; r < second.attend.seq_lens.size(); ++r)
    std::copy_n(second.attend.table.begin() + r * second.attend.max_blocks, second.attend.max_blocks,
                table.begin() + r * first.attend.max_blocks);
  const auto upload = [](auto& device, const auto& host) {
    ASSERT_LE(host.size(), device.count);
    ASSERT_CUDA(cudaMemcpy(device.data, host.data(), host.size() * sizeof(host[0]), cudaMemcpyHostToDevice));
  };
  upload(run.table, table);
  upload(run.seq_lens, second.attend.seq_lens);
  upload(run.pages, second.attend.pages);
  upload(run.index_pages, second.index_pages);
  upload(run.q, second.attend.q);
  upload(run.index_q, second.index_q);
  replay(second);
  ASSERT_CUDA(cudaGraphExecDestroy(exec));
  ASSERT_CUDA(cudaGraphDestroy(graph));
  ASSERT_CUDA(cudaStreamDestroy(stream));
}

void expect_refused(const Status& status, Code code, const std::string& message) {
  EXPECT_EQ(static_cast<int>(status.code), static_cast<int>(code));
  EXPECT_EQ(status.message, message);
}

TEST(Plan, WrongArgumentsAreRefusedByName) {
  PlanShape s;
  s.prefill_lens = {}, s.prefill_queries = {};
  const PlanCase c(s);
  PlanRun run(c);
  std::unique_ptr<Plan> plan;
  ASSERT_OK(Plan::create(c.config(), &plan));
  ASSERT_OK(plan->prepare(run.step(), nullptr));
  gpu::IndexArgs index = run.index_args();
  index.q = nullptr;
  expect_refused(plan->index(index, nullptr), Code::kInvalid, "q must not be null");
  index = run.index_args();
  index.num_blocks = 0;
  expect_refused(plan->index(index, nullptr), Code::kInvalid, "num_blocks must be in [1, 8388607], got 0");
  gpu::AttendArgs attend = run.attend_args();
  attend.out = reinterpret_cast<char*>(run.out.data) + 2;
  expect_refused(plan->attend(attend, nullptr), Code::kInvalid, "out must be aligned to 16 bytes");
  expect_refused(plan->attend(run.dense_args(), nullptr), Code::kInvalid, "selected must not be null");
  expect_refused(plan->dense(run.attend_args(), nullptr), Code::kInvalid,
                 "selected must be null for dense attention");
  expect_refused(plan->store({}, nullptr), Code::kInvalid, "the plan's rotary_dim must not be 0 for store");
}

TEST(Plan, AnEmptyStepLaunchesNothing) {
  std::unique_ptr<Plan> plan;
  ASSERT_OK(Plan::create(PlanCase({}).config(), &plan));
  ASSERT_OK(plan->prepare({}, nullptr));
  ASSERT_OK(plan->index({}, nullptr));
  ASSERT_OK(plan->attend({}, nullptr));
  ASSERT_OK(plan->dense({}, nullptr));
  EXPECT_EQ(plan->describe(), "");
}

}  // namespace
}  // namespace msa::sm90
