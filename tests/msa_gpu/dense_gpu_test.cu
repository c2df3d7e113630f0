// SPDX-License-Identifier: Apache-2.0
// Dense attention against the scalar reference with double sums, over shuffled pages with NaN in everything
// that no request wrote; poisoned outputs and workspaces.
#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "msa/sm90/dense/dense.h"
#include "msa_gpu/attend_case.h"
#include "msa_gpu/late_write.h"
#include "sm90/tensor_map.h"

namespace msa::sm90 {
namespace {

struct DenseCase : Case {
  explicit DenseCase(Shape s) : Case(with_cheap_selection(s)) {
    std::vector<int32_t>().swap(selected);  // none: the reference attends to everything
  }

 private:
  static Shape with_cheap_selection(Shape s) {
    s.pattern = Pattern::kIdentical;
    return s;
  }
};

struct DenseRun : CaseOnDevice {
  Device<uint8_t> workspace;
  int num_requests;

  explicit DenseRun(const DenseCase& made)
      : CaseOnDevice(made),
        workspace(dense_workspace_bytes(c.total, static_cast<int>(c.seq_lens.size()), c.max_blocks,
                                        c.shape.kv_heads, c.shape.group)),
        num_requests(static_cast<int>(c.seq_lens.size())) {
    workspace.poison();
  }

  // Uniform: every request has as many queries as the first.
  cudaError_t launch(bool uniform = false, cudaStream_t stream = nullptr) const {
    DenseParams p;
    p.q = reinterpret_cast<const __nv_bfloat16*>(q.data), p.kv_pages = kv_pages();
    p.block_table = table.data, p.seq_lens = seq_lens.data, p.cu_seqlens_q = uniform ? nullptr : cu.data;
    p.kv_scales = scales(), p.out = reinterpret_cast<__nv_bfloat16*>(out.data);
    p.workspace = workspace.data, p.total_queries = c.total, p.num_requests = num_requests;
    p.max_queries_per_request = *std::max_element(c.shape.queries.begin(), c.shape.queries.end());
    p.max_blocks = c.max_blocks, p.num_pages = c.num_pages;
    p.kv_heads = c.shape.kv_heads, p.group = c.shape.group;
    p.kv_type = c.shape.fp8 ? hopper::Element::kE4M3 : hopper::Element::kBF16;
    return launch_dense(p, stream);
  }
};

void expect_right(const Shape& s, bool uniform = false) {
  const DenseCase c(s);
  const DenseRun run(c);
  ASSERT_CUDA(run.launch(uniform));
  ASSERT_CUDA(cudaDeviceSynchronize());
  expect_matches_reference(c, run.out.host());
}

const std::vector<int> kCornerLengths = {1, 127, 128, 129, 2047, 2048, 2049, 5000};

class DenseShapes : public testing::TestWithParam<std::tuple<int, int, bool>> {
 protected:
  Shape shape() const {
    Shape s;
    s.kv_heads = std::get<0>(GetParam()), s.group = std::get<1>(GetParam());
    s.fp8 = s.scaled = std::get<2>(GetParam());
    return s;
  }
};

TEST_P(DenseShapes, DecodeOfOneQueryMatchesTheReferenceAtEveryCornerLength) {
  Shape s = shape();
  s.seq_lens = kCornerLengths;
  s.seq_lens.push_back(0);  // padding
  s.queries.assign(s.seq_lens.size(), 1);
  expect_right(s, true);
}

TEST_P(DenseShapes, PrefillOfARaggedBatchMatchesTheReference) {
  Shape s = shape();
  s.seq_lens = kCornerLengths;
  s.seq_lens.push_back(0);
  s.queries = {1, 127, 1, 129, 2047, 16, 700, 300, 3};
  expect_right(s);
}

INSTANTIATE_TEST_SUITE_P(All, DenseShapes,
                         testing::Combine(testing::Values(1, 2, 4), testing::Values(4, 8, 16),
                                          testing::Bool()),
                         [](const auto& info) {
                           return "Heads" + std::to_string(std::get<0>(info.param)) + "Group" +
                                  std::to_string(std::get<1>(info.param)) +
                                  (std::get<2>(info.param) ? "Fp8" : "Bf16");
                         });

TEST(Dense, OneToSixteenQueriesPerRequestMatchTheReference) {
  for (int queries = 1; queries <= 16; ++queries)
    for (const int group : {4, 8, 16}) {
      SCOPED_TRACE(testing::Message() << queries << " queries, group " << group);
      Shape s;
      s.seq_lens = {16, 130, 0, 2049, 3000};
      s.queries.assign(s.seq_lens.size(), queries);
      s.kv_heads = 2, s.group = group, s.fp8 = s.scaled = queries % 3 == 0;
      expect_right(s, true);
    }
}

TEST(Dense, RaggedDecodeMatchesTheReference) {
  Shape s;
  s.seq_lens = {16, 130, 5000, 2049, 700, 3000};
  s.queries = {4, 3, 1, 2, 0, 4};
  s.group = 4;
  expect_right(s);
}

TEST(Dense, ALongContextIsSplitAndMerged) {
  for (const int queries : {1, 2, 16, 129})
    for (const bool fp8 : {false, true}) {
      SCOPED_TRACE(testing::Message() << queries << " queries" << (fp8 ? ", fp8" : ""));
      Shape s;
      s.seq_lens = {70001};
      s.queries = {queries};
      s.group = 8, s.fp8 = s.scaled = fp8;
      expect_right(s);
    }
}

TEST(Dense, OneLongRequestAmongManyShortOnesMatchesTheReference) {
  for (const int queries : {1, 20}) {
    SCOPED_TRACE(testing::Message() << queries << " queries");
    Shape s;
    for (int i = 0; i < 150; ++i) s.seq_lens.push_back(20 + i * 37 % 900), s.queries.push_back(queries);
    s.seq_lens[77] = 30000;
    s.kv_heads = 2, s.group = 8;
    expect_right(s);
  }
}

// As a captured decode step has it: the table is made for the longest context there may be.
TEST(Dense, ATableFarLargerThanTheContextsMatchesTheReference) {
  for (const int length : {1, 64, 65, 193, 300, 1000})
    for (const int queries : {1, 20}) {
      SCOPED_TRACE(testing::Message() << length << " keys, " << queries << " queries");
      Shape s;
      s.seq_lens = {std::max(length, queries), 0, 70};
      s.queries.assign(3, queries);
      s.kv_heads = 2, s.group = 8, s.spare_blocks = 1000;
      expect_right(s, true);
    }
}

// More requests than the kernels that number them have threads.
TEST(Dense, ManyRequestsMatchTheReference) {
  for (const int queries : {1, 5}) {
    Shape s;
    for (int i = 0; i < 1200; ++i) s.seq_lens.push_back(5 + i * 31 % 200), s.queries.push_back(queries);
    s.seq_lens[1100] = 9000, s.seq_lens[3] = 0;
    s.group = 4;
    expect_right(s, true);
  }
}

TEST(Dense, RowsAfterTheLastRequestAreZero) {
  for (const int queries : {1, 40}) {
    Shape s;
    s.seq_lens = {300, 900, 50};
    s.queries.assign(3, queries);
    const DenseCase c(s);
    DenseRun run(c);
    run.num_requests = 2;
    ASSERT_CUDA(run.launch());
    const auto got = run.out.host();
    const size_t width = 16 * 128;
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i] == 0, i >= 2 * queries * width) << "row " << i / width << " element " << i % width;
  }
}

TEST(Dense, RepeatsAndGraphReplaysGiveTheSameBits) {
  for (const bool decode : {false, true})
    for (const bool fp8 : {false, true}) {
      Shape s;
      s.seq_lens = {9000, 900, 129};
      s.queries = {decode ? 1 : 300, decode ? 1 : 30, decode ? 1 : 129};
      s.fp8 = s.scaled = fp8;
      const DenseCase c(s);
      DenseRun run(c);
      cudaStream_t stream;
      ASSERT_CUDA(cudaStreamCreate(&stream));
      ASSERT_CUDA(run.launch(decode, stream));
      ASSERT_CUDA(cudaStreamSynchronize(stream));
      const auto first = run.out.host();
      cudaGraph_t graph;
      cudaGraphExec_t exec;
      ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
      ASSERT_CUDA(run.launch(decode, stream));
      ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
      ASSERT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
      for (int i = 0; i < 5; ++i) {
        run.out.poison();
        run.workspace.poison();
        ASSERT_CUDA(cudaDeviceSynchronize());
        ASSERT_CUDA(cudaGraphLaunch(exec, stream));
        ASSERT_CUDA(cudaStreamSynchronize(stream));
        ASSERT_EQ(first, run.out.host()) << (decode ? "decode" : "prefill") << " replay " << i;
      }
      cudaGraphExecDestroy(exec);
      cudaGraphDestroy(graph);
      cudaStreamDestroy(stream);
    }
}

// The kernel starts before the one ahead has ended, and that one may write the step's own keys.
TEST(Dense, KeysOfThisStepAreReadAfterTheKernelThatWritesThem) {
  for (const int queries : {1, 4, 20}) {
    SCOPED_TRACE(testing::Message() << queries << " queries");
    Shape s;
    s.seq_lens = {9000, 130, 64, 20, 2112};
    s.queries.assign(s.seq_lens.size(), queries);
    s.kv_heads = 2, s.group = 4;
    const DenseCase c(s);
    const DenseRun run(c);
    std::vector<uint16_t> pages = c.pages;
    for (size_t r = 0; r < c.seq_lens.size(); ++r)
      for (int key = c.seq_lens[r] - queries; key < c.seq_lens[r]; ++key)
        for (int part = 0; part < 2 * s.kv_heads; ++part) {  // K and V of each head
          const size_t page = c.table[r * c.max_blocks + key / 128];
          std::fill_n(pages.begin() + ((page * 2 * s.kv_heads + part) * 128 + key % 128) * 128, 128, 0x7fff);
        }
    const Device<uint16_t> right(c.pages);
    ASSERT_CUDA(cudaMemcpy(run.pages.data, pages.data(), pages.size() * 2, cudaMemcpyHostToDevice));
    ASSERT_CUDA(write_late(run.pages.data, right.data, pages.size() * 2, nullptr));
    ASSERT_CUDA(run.launch(true));
    ASSERT_CUDA(cudaDeviceSynchronize());
    expect_matches_reference(c, run.out.host());
  }
}

TEST(Dense, EmptyBatchesLaunchNothingAndOtherGroupsAreRefused) {
  EXPECT_EQ(cudaSuccess, launch_dense({}, nullptr));
  DenseParams p;
  p.total_queries = p.num_requests = 1, p.group = 12;
  EXPECT_EQ(cudaErrorInvalidValue, launch_dense(p, nullptr));
}

}  // namespace
}  // namespace msa::sm90
