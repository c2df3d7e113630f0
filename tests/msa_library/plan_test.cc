// SPDX-License-Identifier: Apache-2.0
// What a plan decides on the host, without a device: what it refuses, which kernels it takes, and that its
// workspace holds every step within its maxima.
#include "msa/sm90/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "msa/sm90/attend/attend_decode.h"

namespace msa::sm90 {
namespace {

using gpu::Code;
using gpu::Part;
using gpu::PlanConfig;
using gpu::Status;
using gpu::Step;

constexpr int kSms = 132;

PlanConfig config_of(int query_heads, int kv_heads) {
  PlanConfig c;
  c.heads = {query_heads, kv_heads};
  c.max_requests = 64;
  c.max_queries = 8192;
  c.max_blocks = 8192;
  return c;
}

// Any address will do: the host never reads through it.
const int32_t* somewhere() {
  static const int32_t place = 0;
  return &place;
}

Part part_of(int requests, int queries, int max_queries, int blocks, bool uniform) {
  return {.num_requests = requests,
          .total_queries = queries,
          .max_queries = max_queries,
          .cu_seqlens_q = uniform ? nullptr : somewhere(),
          .seq_lens = somewhere(),
          .block_table = somewhere(),
          .max_blocks = blocks};
}

void expect_refused(const Status& status, Code code, const std::string& message) {
  EXPECT_EQ(static_cast<int>(status.code), static_cast<int>(code));
  EXPECT_EQ(status.message, message);
}

TEST(PlanConfigCheck, EveryHeadShapeOfTheModelIsTaken) {
  for (const int kv_heads : {1, 2, 4})
    for (const int group : {4, 8, 16}) EXPECT_TRUE(check_config(config_of(kv_heads * group, kv_heads)).ok());
}

TEST(PlanConfigCheck, ARefusalNamesTheFieldAndItsValue) {
  expect_refused(check_config(config_of(48, 3)), Code::kUnsupported,
                 "heads.kv_heads must be 1, 2 or 4, got 3");
  expect_refused(check_config(config_of(24, 2)), Code::kUnsupported,
                 "heads.query_heads must be 4, 8 or 16 times kv_heads (2), got 24");
  PlanConfig c = config_of(16, 1);
  c.selection.top_k = 17;
  expect_refused(check_config(c), Code::kUnsupported, "selection.top_k must be in [1, 16], got 17");
  c = config_of(16, 1);
  c.max_blocks = 60000;
  expect_refused(check_config(c), Code::kUnsupported, "max_blocks must be in [1, 57344], got 60000");
  c = config_of(16, 1);
  c.rotary_dim = 48;
  expect_refused(check_config(c), Code::kUnsupported, "rotary_dim must be 0, 16, 32, 64 or 128, got 48");
  c.rotary_dim = 64;
  expect_refused(check_config(c), Code::kInvalid, "inv_freq must be rotary_dim / 2 = 32 long, got 0");
}

TEST(PlanStepCheck, AnEmptyStepIsFine) {
  EXPECT_TRUE(check_step(config_of(16, 1), {}).ok());
}

TEST(PlanStepCheck, ARefusalNamesTheFieldAndItsValue) {
  const PlanConfig c = config_of(16, 1);
  const auto decode = [&](const Part& part) { return check_step(c, {.decode = part}); };
  const auto prefill = [&](const Part& part) { return check_step(c, {.prefill = part}); };
  expect_refused(decode(part_of(65, 65, 1, 8, true)), Code::kCapacity,
                 "decode.num_requests must be in [0, 64], got 65");
  expect_refused(decode(part_of(1, 17, 17, 8, true)), Code::kUnsupported,
                 "decode.max_queries must be in [1, 16], got 17");
  expect_refused(decode(part_of(2, 9, 4, 8, true)), Code::kInvalid,
                 "decode.total_queries must be num_requests * max_queries = 8, got 9");
  expect_refused(decode(part_of(2, 8, 4, 8193, true)), Code::kCapacity,
                 "decode.max_blocks must be in [1, 8192], got 8193");
  expect_refused(decode(part_of(2, 8, 4, 8, false)), Code::kInvalid,
                 "decode.cu_seqlens_q must be null: its requests have equally many queries");
  expect_refused(prefill(part_of(2, 8, 4, 8, true)), Code::kInvalid, "prefill.cu_seqlens_q must not be null");
  expect_refused(prefill(part_of(0, 8, 4, 8, false)), Code::kInvalid,
                 "prefill.num_requests must be in [1, 64], got 0");
  expect_refused(prefill(part_of(2, 8193, 4, 8, false)), Code::kCapacity,
                 "prefill.total_queries must be in [0, 8192], got 8193");
  Part part = part_of(2, 8, 4, 8, true);
  part.seq_lens = nullptr;
  expect_refused(decode(part), Code::kInvalid, "decode.seq_lens must not be null");
  expect_refused(
      check_step(c, {.decode = part_of(32, 32, 1, 8, true), .prefill = part_of(2, 8180, 8179, 64, false)}),
      Code::kCapacity, "decode.total_queries + prefill.total_queries must be in [0, 8192], got 8212");
}

TEST(PlanChoice, DecodeAndShortExtendsGoByQueryAndLongPromptsByBlock) {
  const PlanConfig one = config_of(16, 1), four = config_of(64, 4);
  EXPECT_EQ(choose_attend(one, part_of(64, 64, 1, 1024, true)), AttendKernel::kDecode);
  EXPECT_EQ(choose_attend(four, part_of(64, 1024, 16, 1024, true)), AttendKernel::kDecode);
  EXPECT_EQ(choose_attend(one, part_of(1, 128, 128, 1024, false)), AttendKernel::kDecode);
  EXPECT_EQ(choose_attend(four, part_of(1, 128, 128, 1024, false)), AttendKernel::kPrefill);
  EXPECT_EQ(choose_attend(one, part_of(1, 8192, 8192, 64, false)), AttendKernel::kPrefill);
}

TEST(PlanChoice, AttentionSelectsWhereRowsAreFewOrThereIsNothingToChoose) {
  PlanConfig one = config_of(8, 1), four = config_of(64, 4);
  EXPECT_TRUE(selects_in_attention(one, part_of(1, 1, 1, 1024, true)));
  EXPECT_TRUE(selects_in_attention(one, part_of(4, 4, 1, 17, true)));
  EXPECT_FALSE(selects_in_attention(one, part_of(5, 5, 1, 17, true)));
  EXPECT_TRUE(selects_in_attention(one, part_of(64, 64, 1, 16, true)));
  EXPECT_FALSE(selects_in_attention(one, part_of(1, 1, 1, 1025, true)));
  EXPECT_FALSE(selects_in_attention(one, part_of(1, 2, 2, 16, true)));
  EXPECT_TRUE(selects_in_attention(four, part_of(1, 1, 1, 64, true)));
  EXPECT_FALSE(selects_in_attention(four, part_of(2, 2, 1, 64, true)));
  one.selection.top_k = 15;
  EXPECT_FALSE(selects_in_attention(one, part_of(64, 64, 1, 16, true)));
  one.batch_invariant = true;
  EXPECT_FALSE(selects_in_attention(one, part_of(1, 1, 1, 64, true)));
}

TEST(PlanChoice, IsSaidInWords) {
  const PlanConfig c = config_of(16, 1);
  const Step step = {.decode = part_of(64, 64, 1, 1024, true), .prefill = part_of(2, 4096, 4000, 64, false)};
  EXPECT_EQ(describe_step(c, step),
            "decode: 64 queries of 64 requests; index scan; attend by query (decode kernel), " +
                std::to_string(attend_decode_splits(64, 1, 64)) +
                " splits\n"
                "prefill: 4096 queries of 2 requests; index tile; attend by block (prefill kernel)\n");
  EXPECT_EQ(describe_step(c, {}), "");
}

TEST(PlanLayoutTest, HoldsEveryStepWithinItsMaxima) {
  std::mt19937 rng(7);
  const auto up_to = [&](int most) {  // small sizes as often as large ones
    const double x = std::uniform_real_distribution<double>(0, std::log2(most + 1.0))(rng);
    return std::clamp(static_cast<int>(std::exp2(x)), 1, most);
  };
  for (int trial = 0; trial < 200; ++trial) {
    const int kv_heads = 1 << (rng() % 3), group = 4 << (rng() % 3);
    PlanConfig c = config_of(kv_heads * group, kv_heads);
    c.selection.top_k = up_to(16);
    c.max_requests = up_to(512);
    c.max_queries = std::max(up_to(32768), c.max_requests);
    c.max_blocks = up_to(8192);
    const Regions have = plan_layout(c, kSms).bytes;
    for (int i = 0; i < 300; ++i) {
      Part part;
      part.num_requests = up_to(c.max_requests);
      part.max_queries = up_to(c.max_queries);
      part.total_queries = static_cast<int>(
          std::min<int64_t>(up_to(c.max_queries), int64_t{part.num_requests} * part.max_queries));
      part.max_blocks = up_to(c.max_blocks);
      const Regions need = regions_of(c, part, kSms);
      ASSERT_TRUE(need.index_schedule <= have.index_schedule && need.index <= have.index &&
                  need.decode <= have.decode && need.attend <= have.attend)
          << part.num_requests << " requests, " << part.total_queries << " queries, at most "
          << part.max_queries << ", " << part.max_blocks << " blocks of " << c.max_requests << ", "
          << c.max_queries << ", " << c.max_blocks << "; schedule " << need.index_schedule << "/"
          << have.index_schedule << ", index " << need.index << "/" << have.index << ", decode "
          << need.decode << "/" << have.decode << ", attend " << need.attend << "/" << have.attend;
    }
  }
}

TEST(PlanLayoutTest, ShortTablesMayNeedMoreThanLongOnes) {
  PlanConfig c = config_of(16, 1);
  c.max_requests = 1, c.max_queries = 32768, c.max_blocks = 200;
  const size_t need = regions_of(c, part_of(1, 32768, 32768, 128, false), kSms).index;
  EXPECT_GT(need, regions_of(c, part_of(1, 32768, 32768, 200, false), kSms).index);
  EXPECT_LE(need, plan_layout(c, kSms).bytes.index);
}

TEST(PlanLayoutTest, RegionsAreAlignedAndApart) {
  for (const int queries : {1, 77, 8191}) {
    PlanConfig c = config_of(64, 4);
    c.rotary_dim = 64;
    c.selection.top_k = 5, c.max_requests = 61, c.max_queries = queries, c.max_blocks = 1001;
    const PlanLayout l = plan_layout(c, kSms);
    const size_t at[] = {l.schedules[0], l.schedules[1], l.index, l.decode, l.attend, l.rotary, l.total};
    const size_t bytes[] = {l.bytes.index_schedule, l.bytes.index_schedule, l.bytes.index,
                            l.bytes.decode,         l.bytes.attend,         size_t(queries) * 32 * 8};
    for (int i = 0; i < 6; ++i) {
      EXPECT_EQ(at[i] % 256, 0u) << i;
      EXPECT_LE(at[i] + bytes[i], at[i + 1]) << i;
    }
  }
}

}  // namespace
}  // namespace msa::sm90
