// SPDX-License-Identifier: Apache-2.0
#include "msa_gpu/plan_case.h"

#include <atomic>
#include <bit>
#include <thread>

namespace msa::sm90 {
namespace {

Shape attend_shape(const PlanShape& s) {
  Shape shape;
  shape.seq_lens = s.decode_lens;
  shape.queries.assign(s.decode_lens.size(), s.decode_queries);
  shape.seq_lens.insert(shape.seq_lens.end(), s.prefill_lens.begin(), s.prefill_lens.end());
  shape.queries.insert(shape.queries.end(), s.prefill_queries.begin(), s.prefill_queries.end());
  shape.kv_heads = s.kv_heads, shape.group = s.group, shape.top_k = s.top_k;
  shape.fp8 = s.kv_e4m3, shape.scaled = s.scaled, shape.seed = s.seed;
  return shape;
}

uint16_t small_integer(std::mt19937& rng) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(rng() % 5) - 2.0f) >> 16);
}

uint8_t as_e4m3(uint16_t bits) {
  switch (bits & 0x7fff) {
    case 0x3f80:
      return static_cast<uint8_t>(bits >> 8 & 0x80) | 0x38;  // 1
    case 0x4000:
      return static_cast<uint8_t>(bits >> 8 & 0x80) | 0x40;  // 2
    default:
      return 0;
  }
}

}  // namespace

PlanCase::PlanCase(const PlanShape& s) : shape(s), attend(attend_shape(s)) {
  std::mt19937 rng(s.seed + 100);
  index_q.resize(size_t(attend.total) * s.kv_heads * kHeadDim);
  for (auto& x : index_q) x = small_integer(rng);
  index_pages.resize(size_t(attend.num_pages) * kBlock * kHeadDim);
  for (auto& x : index_pages) x = small_integer(rng);
  index_pages8.resize(index_pages.size());
  for (size_t i = 0; i < index_pages.size(); ++i) index_pages8[i] = as_e4m3(index_pages[i]);
  for (size_t r = s.decode_lens.size(); r < attend.cu.size(); ++r)
    prefill_cu.push_back(attend.cu[r] - decode_rows());
  select();
}

void PlanCase::select() {
  std::fill(attend.selected.begin(), attend.selected.end(), -1);
  const IndexParams params{.heads = {shape.kv_heads, shape.kv_heads},
                           .selection = {.top_k = shape.top_k},
                           .q = index_q.data(),
                           .k_pages = index_pages.data(),
                           .selected = attend.selected.data()};
  std::atomic<int> next{0};
  const auto work = [&] {
    for (int row; (row = next++) < attend.total;) {
      const auto after = std::upper_bound(attend.cu.begin(), attend.cu.end(), row);
      const int request = static_cast<int>(after - attend.cu.begin()) - 1;
      const int position = attend.seq_lens[request] - attend.cu[request + 1] + row;
      if (position >= 0) reference::index_query(attend.plan(), params, request, row);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
}

gpu::PlanConfig PlanCase::config() const {
  gpu::PlanConfig config;
  config.heads = {shape.kv_heads * shape.group, shape.kv_heads};
  config.selection.top_k = shape.top_k;
  config.kv_type = shape.kv_e4m3 ? gpu::CacheType::kE4M3 : gpu::CacheType::kBF16;
  config.index_type = shape.index_e4m3 ? gpu::CacheType::kE4M3 : gpu::CacheType::kBF16;
  config.max_requests = static_cast<int>(attend.seq_lens.size()) + 3;
  config.max_queries = attend.total + 100;
  config.max_blocks = attend.max_blocks + 20;
  return config;
}

PlanRun::PlanRun(const PlanCase& made)
    : CaseOnDevice(made.attend),
      c(made),
      index_q(c.index_q),
      index_pages(c.index_pages),
      index_pages8(c.index_pages8),
      prefill_cu(c.prefill_cu),
      chosen(c.attend.selected.size()) {
  chosen.poison();
}

gpu::Step PlanRun::step() const {
  const int decode = c.decode_requests(), all = static_cast<int>(c.attend.seq_lens.size());
  gpu::Step step;
  step.decode = {.num_requests = decode,
                 .total_queries = c.decode_rows(),
                 .max_queries = c.shape.decode_queries,
                 .seq_lens = seq_lens.data,
                 .block_table = table.data,
                 .max_blocks = c.attend.max_blocks};
  if (all == decode) return step;
  step.prefill = {
      .num_requests = all - decode,
      .total_queries = c.attend.total - c.decode_rows(),
      .max_queries = *std::max_element(c.shape.prefill_queries.begin(), c.shape.prefill_queries.end()),
      .cu_seqlens_q = prefill_cu.data,
      .seq_lens = seq_lens.data + decode,
      .block_table = table.data + size_t(decode) * c.attend.max_blocks,
      .max_blocks = c.attend.max_blocks};
  return step;
}

gpu::IndexArgs PlanRun::index_args() const {
  const void* pages = c.shape.index_e4m3 ? static_cast<const void*>(index_pages8.data) : index_pages.data;
  return {.q = index_q.data, .k_pages = pages, .num_blocks = c.attend.num_pages, .selected = chosen.data};
}

gpu::AttendArgs PlanRun::attend_args() const {
  gpu::AttendArgs args = dense_args();
  args.selected = chosen.data;
  return args;
}

gpu::AttendArgs PlanRun::dense_args() const {
  return {.q = q.data,
          .kv_pages = kv_pages(),
          .num_blocks = c.attend.num_pages,
          .kv_scales = scales(),
          .out = out.data};
}

}  // namespace msa::sm90
