// SPDX-License-Identifier: Apache-2.0
// What is planned for the attention kernels, against what their plan takes. No GPU is needed.
#include "model/workspace.h"

#include <gtest/gtest.h>

#include "msa/sm90/plan.h"
#include "support/m3_config.h"

namespace sparrow {
namespace {

// The schedules and lists that the estimate leaves out.
constexpr double kLeftOut = 0.03;

TEST(GpuAttentionBytes, AreThoseOfTheKernelsPlan) {
  const ModelConfig config = parse_config(test::m3_config_json(), "").value();
  constexpr int kHopperSms = 132;
  const std::vector<float> frequencies(32);
  for (const int ranks : {1, 2, 4, 8})
    for (const int context : {8192, 131072, 1048576})
      for (const int tokens : {512, 2048, 8192})
        for (const int sequences : {16, 64, 256}) {
          const int query_heads = 64 / ranks, kv_heads = ranks > 4 ? 1 : 4 / ranks;
          const msa::gpu::PlanConfig plan{.heads = {query_heads, kv_heads},
                                          .selection = {16, 1, 0},
                                          .max_requests = sequences,
                                          .max_queries = tokens,
                                          .max_blocks = context / 128,
                                          .rotary_dim = 64,
                                          .inv_freq = frequencies};
          ASSERT_TRUE(msa::sm90::check_config(plan).ok());
          const auto taken = static_cast<double>(msa::sm90::plan_layout(plan, kHopperSms).total);
          const auto planned = static_cast<double>(
              gpu_attention_bytes(config, query_heads, kv_heads, {tokens, sequences, context}));
          EXPECT_NEAR(planned / taken, 1.0, kLeftOut)
              << ranks << " ranks, " << context << " context, " << tokens << " tokens, " << sequences;
        }
}

}  // namespace
}  // namespace sparrow
