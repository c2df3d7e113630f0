// SPDX-License-Identifier: Apache-2.0
// The Hopper decode attend kernel against the scalar reference with double sums.
#include <gtest/gtest.h>

#include "msa/sm90/attend/attend_decode.h"
#include "msa_gpu/attend_case.h"

namespace msa::sm90 {
namespace {

struct DecodeRun : CaseOnDevice {
  Device<uint8_t> workspace;

  explicit DecodeRun(const Case& made)
      : CaseOnDevice(made), workspace(attend_decode_workspace_bytes(c.total, c.shape.kv_heads)) {
    workspace.poison();
  }

  cudaError_t launch(bool uniform, cudaStream_t stream = nullptr) {
    AttendDecodeParams p;
    p.q = reinterpret_cast<const __nv_bfloat16*>(q.data);
    p.kv_pages = kv_pages();
    p.kv_scales = scales();
    p.selected = selected.data, p.block_table = table.data, p.seq_lens = seq_lens.data;
    p.cu_seqlens_q = uniform ? nullptr : cu.data;
    p.out = reinterpret_cast<__nv_bfloat16*>(out.data);
    p.workspace = workspace.data;
    p.rows = c.total, p.num_requests = static_cast<int>(c.seq_lens.size());
    p.queries_per_request = c.shape.queries[0];
    p.kv_heads = c.shape.kv_heads, p.group = c.shape.group, p.top_k = c.shape.top_k;
    p.max_blocks = c.max_blocks, p.num_pages = c.num_pages;
    return launch_attend_decode(p, c.shape.fp8 ? KvType::kE4M3 : KvType::kBF16, stream);
  }
};

const std::vector<int> kCornerLengths = {1, 127, 128, 129, 2047, 2048, 2049, 5000};

class AttendDecodeShapes : public testing::TestWithParam<std::tuple<int, int, Pattern>> {
 protected:
  Shape shape() const {
    Shape s;
    s.kv_heads = std::get<0>(GetParam()), s.group = std::get<1>(GetParam()),
    s.pattern = std::get<2>(GetParam());
    return s;
  }
};

TEST_P(AttendDecodeShapes, DecodeOfOneQueryMatchesTheReferenceAtEveryCornerLength) {
  Shape s = shape();
  s.seq_lens = kCornerLengths;
  s.seq_lens.push_back(0);  // padding
  s.queries.assign(s.seq_lens.size(), 1);
  const Case c(s);
  DecodeRun run(c);
  ASSERT_CUDA(run.launch(true));
  expect_matches_reference(c, run.out.host());
}

INSTANTIATE_TEST_SUITE_P(All, AttendDecodeShapes,
                         testing::Combine(testing::Values(1, 2, 4), testing::Values(4, 8, 16),
                                          testing::Values(Pattern::kIndependent, Pattern::kCorrelated,
                                                          Pattern::kIdentical)));

void expect_decode_matches(const Shape& s, bool uniform = true) {
  const Case c(s);
  DecodeRun run(c);
  ASSERT_CUDA(run.launch(uniform));
  expect_matches_reference(c, run.out.host());
}

TEST(AttendDecode, EverySplitOfTheSlotsMatchesTheReference) {
  std::vector<int> splits;
  for (int batch : {1, 2, 8, 16, 20, 40, 80, 140, 250, 300}) {
    Shape s;
    s.seq_lens.assign(batch, batch > 80 ? 700 : 4000 + batch);
    s.queries.assign(batch, 1);
    splits.push_back(attend_decode_splits(batch, 1));
    expect_decode_matches(s);
  }
  for (int split : {1, 2, 4, 8, 16}) EXPECT_TRUE(std::count(splits.begin(), splits.end(), split)) << split;
}

TEST(AttendDecode, EveryNumberOfQueriesPerRequestMatchesTheReference) {
  for (int queries = 1; queries <= 16; ++queries) {
    Shape s;
    s.seq_lens = {16, 130, 0, 2049, 3000};
    s.queries.assign(s.seq_lens.size(), queries);
    s.kv_heads = 2, s.group = 8;
    expect_decode_matches(s);
  }
}

TEST(AttendDecode, EveryGroupSizeMatchesTheReference) {
  for (const bool fp8 : {false, true})
    for (int group = 1; group <= 16; ++group) {
      Shape s;
      s.seq_lens = {129, 3000};
      s.queries.assign(2, 1);
      s.group = group, s.fp8 = fp8;
      expect_decode_matches(s);
    }
}

TEST(AttendDecode, EveryTopKMatchesTheReference) {
  for (int top_k = 1; top_k <= 16; ++top_k) {
    Shape s;
    s.seq_lens = {100, 2500, 4000};
    s.queries.assign(3, 1);
    s.top_k = top_k;
    expect_decode_matches(s);
  }
}

TEST(AttendDecode, RaggedExtendsMatchTheReference) {
  Shape s;
  s.seq_lens = {16, 130, 5000, 2049, 3000};
  s.queries = {16, 3, 1, 40, 7};
  expect_decode_matches(s, false);
}

TEST(AttendDecode, ALongExtendOfOneRequestMatchesTheReference) {
  ASSERT_NE(attend_decode_splits(100, 1, 1), attend_decode_splits(100, 1, 100));
  Shape s;
  s.seq_lens = {5000};
  s.queries = {100};
  s.group = 8;
  expect_decode_matches(s);
}

TEST(AttendDecode, ContextsBeyondTheTableCacheMatchTheReference) {
  Shape s;
  s.seq_lens = {300000, 1000};
  s.queries = {1, 1};
  s.group = 4;
  expect_decode_matches(s);
}

TEST(AttendDecode, Fp8KeysAndValuesMatchTheReference) {
  for (int group : {4, 8, 16})
    for (int batch : {1, 30, 260}) {
      Shape s;
      s.seq_lens.assign(batch, batch > 100 ? 600 : 3001);
      s.queries.assign(batch, 1);
      s.group = group, s.fp8 = true;
      expect_decode_matches(s);
    }
}

TEST(AttendDecode, Fp8WithAScaleForEachHeadMatchesTheReference) {
  for (int kv_heads : {1, 2, 4}) {
    Shape s;
    s.seq_lens = kCornerLengths;
    s.queries.assign(s.seq_lens.size(), 1);
    s.kv_heads = kv_heads, s.fp8 = s.scaled = true;
    expect_decode_matches(s);
  }
}

// Runs the case twice and then from a graph, each time over poison.
void expect_same_bits(const Shape& s, bool uniform) {
  const Case c(s);
  DecodeRun run(c);
  cudaStream_t stream;
  ASSERT_CUDA(cudaStreamCreate(&stream));
  std::vector<uint16_t> first;
  for (int i = 0; i < 2; ++i) {
    run.out.poison();
    ASSERT_CUDA(cudaDeviceSynchronize());
    ASSERT_CUDA(run.launch(uniform, stream));
    ASSERT_CUDA(cudaStreamSynchronize(stream));
    if (i == 0) first = run.out.host();
    ASSERT_EQ(first, run.out.host());
  }
  expect_matches_reference(c, first);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < 3; ++i) ASSERT_CUDA(run.launch(uniform, stream));
  ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
  ASSERT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 50; ++i) {
    run.out.poison();
    ASSERT_CUDA(cudaDeviceSynchronize());
    ASSERT_CUDA(cudaGraphLaunch(exec, stream));
    ASSERT_CUDA(cudaStreamSynchronize(stream));
    ASSERT_EQ(first, run.out.host()) << "replay " << i;
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(AttendDecode, RepeatsAndGraphReplaysGiveTheSameBits) {
  for (const bool fp8 : {false, true}) {
    for (int batch : {1, 5, 30, 60, 120}) {
      Shape s;
      s.seq_lens.assign(batch, 3000);
      s.queries.assign(batch, 1);
      s.fp8 = fp8;
      expect_same_bits(s, true);
    }
    Shape s;
    s.seq_lens = {3000, 900, 129};
    s.queries = {800, 30, 129};
    s.fp8 = fp8;
    expect_same_bits(s, false);
  }
}

TEST(AttendDecode, AnEmptyBatchLaunchesNothing) {
  EXPECT_EQ(cudaSuccess, launch_attend_decode({}, KvType::kBF16, nullptr));
}

}  // namespace
}  // namespace msa::sm90
