// SPDX-License-Identifier: Apache-2.0
// The Hopper prefill attend kernels against the scalar reference with double sums.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "msa/sm90/attend/attend_prefill.h"
#include "msa_gpu/attend_case.h"
#include "sm90/tensor_map.h"

namespace msa::sm90 {
namespace {

// Every tile block by block, every tile by its union, and as the device chooses.
constexpr float kLimits[] = {0, INFINITY, kUnionLimit};

struct PrefillRun : CaseOnDevice {
  Device<uint8_t> workspace;
  float union_limit = kUnionLimit;

  explicit PrefillRun(const Case& made)
      : CaseOnDevice(made),
        workspace(attend_prefill_workspace_bytes(c.total, static_cast<int>(c.seq_lens.size()),
                                                 c.shape.kv_heads, c.shape.group, c.shape.top_k,
                                                 c.max_blocks)) {
    workspace.poison();
  }

  // Both outputs and workspace start from garbage.
  std::vector<uint16_t> run(float limit) {
    union_limit = limit;
    out.poison();
    workspace.poison();
    EXPECT_EQ(cudaSuccess, launch());
    EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
    return out.host();
  }

  void expect_all_ways_match() {
    for (const float limit : kLimits) {
      SCOPED_TRACE(limit);
      ASSERT_NO_FATAL_FAILURE(expect_matches_reference(c, run(limit)));
    }
  }

  cudaError_t launch(cudaStream_t stream = nullptr) {
    AttendPrefillParams p;
    p.q = reinterpret_cast<const __nv_bfloat16*>(q.data);
    p.kv_pages = kv_pages(), p.kv_scales = scales();
    p.kv_type = c.shape.fp8 ? hopper::Element::kE4M3 : hopper::Element::kBF16;
    p.selected = selected.data, p.block_table = table.data, p.seq_lens = seq_lens.data;
    p.cu_seqlens_q = cu.data;
    p.out = reinterpret_cast<__nv_bfloat16*>(out.data);
    p.workspace = workspace.data;
    p.total_queries = c.total, p.num_requests = static_cast<int>(c.seq_lens.size());
    p.num_pages = c.num_pages;
    p.kv_heads = c.shape.kv_heads, p.group = c.shape.group, p.top_k = c.shape.top_k;
    p.max_blocks = c.max_blocks;
    p.union_limit = union_limit;
    return launch_attend_prefill(p, stream);
  }
};

const std::vector<int> kCornerLengths = {1, 127, 128, 129, 2047, 2048, 2049, 5000};

class AttendPrefillShapes : public testing::TestWithParam<std::tuple<int, int, Pattern>> {
 protected:
  Shape shape() const {
    Shape s;
    s.kv_heads = std::get<0>(GetParam()), s.group = std::get<1>(GetParam()),
    s.pattern = std::get<2>(GetParam());
    return s;
  }
};

TEST_P(AttendPrefillShapes, PrefillOfARaggedBatchMatchesTheReference) {
  Shape s = shape();
  s.seq_lens = kCornerLengths;
  s.queries = {1, 127, 1, 129, 2047, 16, 700, 300};
  const Case c(s);
  PrefillRun(c).expect_all_ways_match();
}

INSTANTIATE_TEST_SUITE_P(All, AttendPrefillShapes,
                         testing::Combine(testing::Values(1, 2, 4), testing::Values(4, 8, 16),
                                          testing::Values(Pattern::kIndependent, Pattern::kCorrelated,
                                                          Pattern::kIdentical)));

TEST(AttendPrefill, TopKBelowSixteenMatchesTheReference) {
  for (int top_k : {1, 2, 3, 5, 8, 12, 15}) {
    Shape s;
    s.seq_lens = {100, 2500};
    s.queries = {100, 600};
    s.top_k = top_k;
    const Case c(s);
    PrefillRun(c).expect_all_ways_match();
  }
}

TEST(AttendPrefill, Fp8KeysAndValuesMatchTheReference) {
  for (const int group : {4, 8, 16})
    for (const int kv_heads : {1, 2, 4}) {
      Shape s;
      s.seq_lens = {1, 127, 129, 2049, 5000};
      s.queries = {1, 127, 129, 300, 250};
      s.group = group, s.kv_heads = kv_heads;
      s.pattern = kv_heads == 2 ? Pattern::kCorrelated : Pattern::kIndependent;
      s.fp8 = true, s.scaled = kv_heads > 1;
      const Case c(s);
      PrefillRun(c).expect_all_ways_match();
    }
}

TEST(AttendPrefill, ALongContextMatchesTheReference) {
  Shape s;
  s.seq_lens = {70000};  // over 512 blocks: the longer windows
  s.queries = {1500};
  s.group = 8;
  const Case c(s);
  PrefillRun(c).expect_all_ways_match();
}

TEST(AttendPrefill, ManyShortRequestsShareAWindow) {
  Shape s;
  for (int i = 0; i < 90; ++i) s.seq_lens.push_back(1 + i * 17 % 400), s.queries.push_back(1 + i * 17 % 400);
  const Case c(s);
  PrefillRun(c).expect_all_ways_match();
}

TEST(AttendPrefill, PaddingRowsAndRequestsWithoutKeysAreZero) {
  Shape s;
  s.seq_lens = {300, 0, 40, 0};
  s.queries = {300, 5, 17, 90};
  s.kv_heads = 2, s.group = 8;
  Case c(s);
  const size_t width = 2 * 8 * 128, padding = 70;
  c.total += padding;
  c.q.resize(c.total * width, 0x7fff);
  c.selected.resize(size_t(c.total) * 2 * 16, 0x7fffffff);
  PrefillRun run(c);
  for (const float limit : kLimits) {
    const auto got = run.run(limit);
    ASSERT_NO_FATAL_FAILURE(expect_matches_reference(c, got));
    for (size_t i = c.cu.back() * width; i < got.size(); ++i) ASSERT_EQ(0, got[i]) << "row " << i / width;
  }
}

// Every third query chooses as before, the others only their own block: the former must not change by a bit,
// whoever shares their tile.
TEST(AttendPrefill, AQuerysBitsDoNotDependOnItsNeighbours) {
  for (const int group : {4, 8, 16}) {
    Shape s;
    s.seq_lens = {5000, 3000};
    s.queries = {700, 333};
    s.group = group;
    const Case all(s);
    Case some(s);
    const auto kept = [](int row) { return row % 3 == 0; };
    for (int row = 0; row < some.total; ++row) {
      int32_t* slots = some.selected.data() + size_t(row) * 16;
      if (kept(row)) continue;
      const int own = *std::max_element(slots, slots + 16);
      std::fill(slots, slots + 16, -1);
      slots[0] = own;
    }
    PrefillRun run_all(all), run_some(some);
    for (const float limit : {0.0f, INFINITY}) {
      const auto a = run_all.run(limit), b = run_some.run(limit);
      const size_t width = size_t(group) * 128;
      for (int row = 0; row < all.total; ++row)
        if (kept(row))
          ASSERT_TRUE(
              std::equal(a.begin() + row * width, a.begin() + (row + 1) * width, b.begin() + row * width))
              << "group " << group << " limit " << limit << " row " << row;
    }
  }
}

TEST(AttendPrefill, TheTwoWaysAgreeOnEveryRow) {
  Shape s;
  s.seq_lens = {3000, 900};
  s.queries = {2000, 900};
  s.pattern = Pattern::kCorrelated;
  const Case c(s);
  PrefillRun run(c);
  const auto outer = run.run(0), united = run.run(INFINITY), chosen = run.run(kUnionLimit);
  const size_t width = 16 * 128;
  int by_union = 0;
  for (int row = 0; row < c.total; ++row) {
    ASSERT_LT(row_difference(c, united, outer, row), kAttendTolerance) << "row " << row;
    const auto same = [&](const std::vector<uint16_t>& other) {
      return std::equal(chosen.begin() + row * width, chosen.begin() + (row + 1) * width,
                        other.begin() + row * width);
    };
    ASSERT_TRUE(same(outer) || same(united)) << "row " << row;
    by_union += same(united);
  }
  EXPECT_GT(by_union, 900);  // the first 2,048 positions choose every block they see
}

TEST(AttendPrefill, RepeatsAndGraphReplaysGiveTheSameBits) {
  Shape s;
  s.seq_lens = {3000, 900, 129};
  s.queries = {800, 30, 129};
  s.pattern = Pattern::kCorrelated;
  const Case c(s);
  PrefillRun run(c);
  cudaStream_t stream;
  ASSERT_CUDA(cudaStreamCreate(&stream));
  for (const float limit : kLimits) {
    const auto first = run.run(limit);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    ASSERT_CUDA(run.launch(stream));
    ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
    ASSERT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 10; ++i) {
      run.out.poison();
      run.workspace.poison();
      ASSERT_CUDA(cudaDeviceSynchronize());
      ASSERT_CUDA(cudaGraphLaunch(exec, stream));
      ASSERT_CUDA(cudaStreamSynchronize(stream));
      ASSERT_EQ(first, run.out.host()) << "limit " << limit << " replay " << i;
    }
    ASSERT_CUDA(cudaGraphExecDestroy(exec));
    ASSERT_CUDA(cudaGraphDestroy(graph));
  }
  ASSERT_CUDA(cudaStreamDestroy(stream));
}

TEST(AttendPrefill, AnEmptyBatchLaunchesNothing) {
  EXPECT_EQ(cudaSuccess, launch_attend_prefill({}, nullptr));
}

}  // namespace
}  // namespace msa::sm90
