// SPDX-License-Identifier: Apache-2.0
// The C interface on the device: every field reaches the C++ plan, so both give the same bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

#include "msa/sparrow_msa.h"
#include "msa_gpu/plan_case.h"

namespace msa::sm90 {
namespace {

#define ASSERT_C_OK(call) ASSERT_EQ(SPARROW_MSA_OK, (call)) << sparrow_msa_last_error()

template <typename T>
T zeros() {
  T value;
  std::memset(&value, 0, sizeof(T));
  value.struct_bytes = sizeof(T);
  return value;
}

sparrow_msa_config c_config(const gpu::PlanConfig& from) {
  auto c = zeros<sparrow_msa_config>();
  c.query_heads = from.heads.query_heads, c.kv_heads = from.heads.kv_heads;
  c.top_k = from.selection.top_k, c.local_blocks = from.selection.local_blocks;
  c.init_blocks = from.selection.init_blocks;
  c.kv_type = from.kv_type == gpu::CacheType::kE4M3 ? SPARROW_MSA_E4M3 : SPARROW_MSA_BF16;
  c.index_type = from.index_type == gpu::CacheType::kE4M3 ? SPARROW_MSA_E4M3 : SPARROW_MSA_BF16;
  c.max_requests = from.max_requests, c.max_queries = from.max_queries, c.max_blocks = from.max_blocks;
  c.rotary_dim = from.rotary_dim, c.inv_freq = from.inv_freq.data();
  c.attention_factor = from.attention_factor;
  return c;
}

sparrow_msa_part c_part(const gpu::Part& from) {
  return {from.num_requests, from.total_queries, from.max_queries, from.max_blocks,
          from.cu_seqlens_q, from.seq_lens,      from.block_table};
}

sparrow_msa_attend_args c_attend(const gpu::AttendArgs& from) {
  auto c = zeros<sparrow_msa_attend_args>();
  c.q = from.q, c.kv_pages = from.kv_pages, c.num_blocks = from.num_blocks, c.kv_scales = from.kv_scales;
  c.selected = from.selected, c.out = from.out;
  return c;
}

struct CPlan {
  sparrow_msa_plan* plan = nullptr;
  ~CPlan() { sparrow_msa_plan_destroy(plan); }
};

TEST(CApi, IndexAttendAndDenseGiveTheBitsOfTheCppPlan) {
  PlanShape s;
  s.kv_heads = 2, s.group = 8, s.kv_e4m3 = s.index_e4m3 = s.scaled = true;
  const PlanCase c(s);
  gpu::PlanConfig config = c.config();
  config.selection.init_blocks = 1, config.selection.local_blocks = 2;
  PlanRun run(c), c_run(c);
  std::unique_ptr<gpu::Plan> plan;
  ASSERT_TRUE(gpu::Plan::create(config, &plan).ok());
  CPlan c_plan;
  const sparrow_msa_config for_c = c_config(config);
  int64_t bytes = 0;
  ASSERT_C_OK(sparrow_msa_workspace_bytes(&for_c, &bytes));
  EXPECT_GT(bytes, 0);
  ASSERT_C_OK(sparrow_msa_plan_create(&for_c, &c_plan.plan));

  const gpu::Step step = run.step(), c_source = c_run.step();
  auto c_step = zeros<sparrow_msa_step>();
  c_step.decode = c_part(c_source.decode), c_step.prefill = c_part(c_source.prefill);
  ASSERT_TRUE(plan->prepare(step, nullptr).ok());
  ASSERT_C_OK(sparrow_msa_prepare(c_plan.plan, &c_step, nullptr));

  auto index = zeros<sparrow_msa_index_args>();
  const gpu::IndexArgs from = c_run.index_args();
  index.q = from.q, index.k_pages = from.k_pages, index.num_blocks = from.num_blocks;
  index.selected = from.selected;
  ASSERT_TRUE(plan->index(run.index_args(), nullptr).ok());
  ASSERT_C_OK(sparrow_msa_index(c_plan.plan, &index, nullptr));
  EXPECT_EQ(run.chosen.host(), c_run.chosen.host());

  const sparrow_msa_attend_args attend = c_attend(c_run.attend_args());
  ASSERT_TRUE(plan->attend(run.attend_args(), nullptr).ok());
  ASSERT_C_OK(sparrow_msa_attend(c_plan.plan, &attend, nullptr));
  EXPECT_EQ(run.out.host(), c_run.out.host());

  run.out.poison(), c_run.out.poison();
  const sparrow_msa_attend_args dense = c_attend(c_run.dense_args());
  ASSERT_TRUE(plan->dense(run.dense_args(), nullptr).ok());
  ASSERT_C_OK(sparrow_msa_dense(c_plan.plan, &dense, nullptr));
  EXPECT_EQ(run.out.host(), c_run.out.host());
  EXPECT_NE(run.out.host(), std::vector<uint16_t>(run.out.count, 0xffff));

  char words[512];
  ASSERT_C_OK(sparrow_msa_describe(c_plan.plan, words, sizeof(words)));
  EXPECT_EQ(plan->describe(), words);
  char few[8];
  ASSERT_C_OK(sparrow_msa_describe(c_plan.plan, few, sizeof(few)));
  EXPECT_EQ(plan->describe().substr(0, 7), few);
}

TEST(CApi, StoreGivesTheBitsOfTheCppPlan) {
  constexpr int kRows = 40, kQueryHeads = 8, kBlocks = 2;
  std::vector<float> inv_freq(32);
  for (int i = 0; i < 32; ++i) inv_freq[i] = std::pow(5e6f, -i / 32.0f);
  gpu::PlanConfig config;
  config.heads = {kQueryHeads, 1};
  config.kv_type = gpu::CacheType::kE4M3;
  config.max_requests = config.max_queries = kRows, config.max_blocks = 1;
  config.rotary_dim = 64, config.inv_freq = inv_freq, config.attention_factor = 1.25f;

  std::mt19937 rng(5);
  // Eight q heads, k, v, index q, index k, and four norm weights as rows of their own.
  std::vector<uint16_t> values((kRows * 12 + 4) * kHeadDim);
  for (auto& x : values) x = static_cast<uint16_t>((rng() & 0x81ff) | 0x3e00);
  std::vector<int32_t> positions(kRows), lens(kRows, 1), table(kRows, 0);
  std::vector<int64_t> slots(kRows);
  for (int r = 0; r < kRows; ++r) positions[r] = 1000 * r, slots[r] = r % 7 == 3 ? -1 : (r * 37) % 256;
  const Device<uint16_t> in(values);
  const Device<int32_t> positions_on(positions), lens_on(lens), table_on(table);
  const Device<int64_t> slots_on(slots);
  const Device<float> scales(std::vector<float>{0.5f, 0.25f});
  struct Outputs {
    Device<uint16_t> q{kRows * kQueryHeads * kHeadDim}, index_q{kRows * kHeadDim},
        index_pages{kBlocks * 128 * 128};
    Device<uint8_t> kv_pages{kBlocks * 2 * 128 * 128};
    Outputs() { q.poison(), index_q.poison(), index_pages.poison(), kv_pages.poison(); }
  } out, c_out;
  const auto at = [&](int head) { return in.data + head * kHeadDim; };

  gpu::Step step;
  step.decode = {.num_requests = kRows,
                 .total_queries = kRows,
                 .max_queries = 1,
                 .seq_lens = lens_on.data,
                 .block_table = table_on.data,
                 .max_blocks = 1};
  step.positions = positions_on.data;
  std::unique_ptr<gpu::Plan> plan;
  ASSERT_TRUE(gpu::Plan::create(config, &plan).ok());
  ASSERT_TRUE(plan->prepare(step, nullptr).ok());
  const int64_t stride = 12 * kHeadDim;
  const int norms = kRows * 12;
  const gpu::StoreArgs store{.q = {at(0), stride},
                             .k = {at(8), stride},
                             .v = {at(9), stride},
                             .index_q = {at(10), stride},
                             .index_k = {at(11), stride},
                             .q_norm = at(norms),
                             .k_norm = at(norms + 1),
                             .index_q_norm = at(norms + 2),
                             .index_k_norm = at(norms + 3),
                             .eps = 1e-5f,
                             .slots = slots_on.data,
                             .kv_scales = scales.data,
                             .q_out = out.q.data,
                             .index_q_out = out.index_q.data,
                             .kv_pages = out.kv_pages.data,
                             .index_pages = out.index_pages.data};
  const gpu::Status status = plan->store(store, nullptr);
  ASSERT_TRUE(status.ok()) << status.message;

  CPlan c_plan;
  const sparrow_msa_config for_c = c_config(config);
  ASSERT_C_OK(sparrow_msa_plan_create(&for_c, &c_plan.plan));
  auto c_step = zeros<sparrow_msa_step>();
  c_step.decode = c_part(step.decode), c_step.positions = step.positions;
  ASSERT_C_OK(sparrow_msa_prepare(c_plan.plan, &c_step, nullptr));
  auto args = zeros<sparrow_msa_store_args>();
  args.q = {at(0), stride}, args.k = {at(8), stride}, args.v = {at(9), stride};
  args.index_q = {at(10), stride}, args.index_k = {at(11), stride};
  args.q_norm = at(norms), args.k_norm = at(norms + 1), args.index_q_norm = at(norms + 2);
  args.index_k_norm = at(norms + 3), args.eps = 1e-5f, args.slots = slots_on.data,
  args.kv_scales = scales.data;
  args.q_out = c_out.q.data, args.index_q_out = c_out.index_q.data, args.kv_pages = c_out.kv_pages.data;
  args.index_pages = c_out.index_pages.data;
  ASSERT_C_OK(sparrow_msa_store(c_plan.plan, &args, nullptr));
  EXPECT_EQ(out.q.host(), c_out.q.host());
  EXPECT_EQ(out.index_q.host(), c_out.index_q.host());
  EXPECT_EQ(out.kv_pages.host(), c_out.kv_pages.host());
  EXPECT_EQ(out.index_pages.host(), c_out.index_pages.host());
  EXPECT_NE(out.q.host(), std::vector<uint16_t>(out.q.count, 0xffff));

  Device<uint16_t> attended(out.q.count), c_attended(out.q.count);
  Device<int32_t> selected(kRows * 16), c_selected(kRows * 16);
  attended.poison(), c_attended.poison(), selected.poison(), c_selected.poison();
  const gpu::Status whole = plan->sparse(
      {.store = store, .num_blocks = kBlocks, .selected = selected.data, .out = attended.data, .scale = 0.5f},
      nullptr);
  ASSERT_TRUE(whole.ok()) << whole.message;
  auto sparse = zeros<sparrow_msa_sparse_args>();
  sparse.store = &args, sparse.num_blocks = kBlocks, sparse.selected = c_selected.data;
  sparse.out = c_attended.data, sparse.scale = 0.5f;
  ASSERT_C_OK(sparrow_msa_sparse(c_plan.plan, &sparse, nullptr));
  EXPECT_EQ(selected.host(), c_selected.host());
  EXPECT_EQ(attended.host(), c_attended.host());
  EXPECT_NE(attended.host(), std::vector<uint16_t>(attended.count, 0xffff));
  sparse.store = nullptr;
  EXPECT_EQ(sparrow_msa_sparse(c_plan.plan, &sparse, nullptr), SPARROW_MSA_INVALID);
}

}  // namespace
}  // namespace msa::sm90
