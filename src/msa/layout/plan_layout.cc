// SPDX-License-Identifier: Apache-2.0
#include "msa/layout/plan_layout.h"

#include <algorithm>
#include <vector>

#include "msa/layout/attend_layout.h"
#include "msa/layout/dense_layout.h"
#include "msa/layout/index_layout.h"
#include "msa/layout/places.h"

namespace msa::sm90 {

using gpu::Code;
using gpu::Part;
using gpu::PlanConfig;
using gpu::Status;

namespace {

constexpr int kMaxPlanBlocks = 56 * 1024;  // the prefill kernel's inversion counts them in shared memory
constexpr int kMaxPlanQueries = (1 << 24) - 1;

// Up to so many (query, KV head) pairs a request's queries share too few blocks to be worth inverting the
// selection (H200, 8 to 128 queries).
constexpr int64_t kDecodeKernelPairs = 256;

IndexShape index_shape(const PlanConfig& config, const Part& part, int heads, int num_sms) {
  return {part.num_requests, part.total_queries,    part.max_queries, part.max_blocks, heads,
          num_sms,           config.batch_invariant};
}

// 1, 2, 4, ... and the last one.
std::vector<int> powers_up_to(int last) {
  std::vector<int> all;
  for (int64_t x = 1; x < last; x *= 2) all.push_back(static_cast<int>(x));
  all.push_back(last);
  return all;
}

void grow(Regions& most, const Regions& more) {
  most.index_schedule = std::max(most.index_schedule, more.index_schedule);
  most.share_list = std::max(most.share_list, more.share_list);
  most.index = std::max(most.index, more.index);
  most.decode = std::max(most.decode, more.decode);
  most.attend = std::max(most.attend, more.attend);
}

// Needs do not grow with every size: queries that fit the scan keep all scores, as do short tables, where
// others keep lists. So the largest is sought over the queries of a request and over table widths.
Regions largest_regions(const PlanConfig& config, int num_sms) {
  Regions most;
  for (const int blocks : powers_up_to(config.max_blocks))
    for (const int queries : powers_up_to(config.max_queries)) {
      Part part;
      part.num_requests = config.max_requests;
      part.max_blocks = blocks;
      part.max_queries = queries;
      part.total_queries =
          static_cast<int>(std::min(int64_t{config.max_queries}, int64_t{config.max_requests} * queries));
      grow(most, regions_of(config, part, num_sms));
    }
  return most;
}

}  // namespace

Status refuse(Code code, const std::string& field, const std::string& rule, int64_t value) {
  return {code, field + " must be " + rule + ", got " + std::to_string(value)};
}

Status need_range(const std::string& field, int64_t value, int64_t low, int64_t high, Code code) {
  if (value >= low && value <= high) return {};
  return refuse(code, field, "in [" + std::to_string(low) + ", " + std::to_string(high) + "]", value);
}

Status check_config(const PlanConfig& config) {
  const int query = config.heads.query_heads, kv = config.heads.kv_heads;
  if (kv != 1 && kv != 2 && kv != 4) return refuse(Code::kUnsupported, "heads.kv_heads", "1, 2 or 4", kv);
  if (query != 4 * kv && query != 8 * kv && query != 16 * kv)
    return refuse(Code::kUnsupported, "heads.query_heads",
                  "4, 8 or 16 times kv_heads (" + std::to_string(kv) + ")", query);
  const Selection& s = config.selection;
  const int most = kMaxTopK;
  struct {
    const char* field;
    int64_t value, low, high;
  } const ranges[] = {
      {"selection.top_k", s.top_k, 1, most},
      {"selection.local_blocks", s.local_blocks, 0, most},
      {"selection.init_blocks", s.init_blocks, 0, most},
      {"max_requests", config.max_requests, 1, kMaxIndexRequests},
      {"max_queries", config.max_queries, 1, kMaxPlanQueries},
      {"max_blocks", config.max_blocks, 1, kMaxPlanBlocks},
  };
  for (const auto& r : ranges)
    if (Status status = need_range(r.field, r.value, r.low, r.high, Code::kUnsupported); !status.ok())
      return status;
  const IndexShare& share = config.index_share;
  if (Status status = need_range("index_share.count", share.count, 1, kMaxIndexShares, Code::kUnsupported);
      !status.ok())
    return status;
  if (share.count > 1) {
    if (Status status = need_range("index_share.share", share.share, 0, share.count - 1, Code::kInvalid);
        !status.ok())
      return status;
    if (Status status = need_range("index_heads", config.index_heads, kv, 4, Code::kUnsupported);
        !status.ok())
      return status;
  }
  const int dim = config.rotary_dim;
  if (dim != 0 && dim != 16 && dim != 32 && dim != 64 && dim != kMaxRotaryDim)
    return refuse(Code::kUnsupported, "rotary_dim", "0, 16, 32, 64 or 128", dim);
  if (static_cast<int>(config.inv_freq.size()) != dim / 2)
    return refuse(Code::kInvalid, "inv_freq", "rotary_dim / 2 = " + std::to_string(dim / 2) + " long",
                  static_cast<int64_t>(config.inv_freq.size()));
  return {};
}

AttendKernel choose_attend(const PlanConfig& config, const Part& part) {
  if (config.batch_invariant) return AttendKernel::kDecode;
  const bool few = int64_t{part.total_queries} * config.heads.kv_heads <= kDecodeKernelPairs;
  return few || part.max_queries <= kMaxDecodeQueries ? AttendKernel::kDecode : AttendKernel::kPrefill;
}

Regions regions_of(const PlanConfig& config, const Part& part, int num_sms) {
  const IndexShape shape = index_shape(config, part, config.heads.kv_heads, num_sms);
  const int kv_heads = config.heads.kv_heads, group = config.heads.query_heads / kv_heads;
  Regions r{.index_schedule = index_schedule_bytes(shape), .index = index_workspace_bytes(shape)};
  if (config.index_share.count > 1) {
    const IndexShape shared = index_shape(config, part, config.index_heads, num_sms);
    r.index_schedule = std::max(r.index_schedule, index_schedule_bytes(shared));
    r.share_list = index_share_layout(shared).bytes;
    r.index = std::max(r.index, index_workspace_bytes(shared));
  }
  r.attend = static_cast<size_t>(
      dense_workspace_bytes(part.total_queries, part.num_requests, part.max_blocks, kv_heads, group));
  if (choose_attend(config, part) == AttendKernel::kDecode)
    r.decode = static_cast<size_t>(attend_decode_workspace_bytes(part.total_queries, kv_heads));
  else
    r.attend = std::max(r.attend, static_cast<size_t>(attend_prefill_workspace_bytes(
                                      part.total_queries, part.num_requests, kv_heads, group,
                                      config.selection.top_k, part.max_blocks)));
  return r;
}

PlanLayout plan_layout(const PlanConfig& config, int num_sms) {
  PlanLayout layout;
  layout.bytes = largest_regions(config, num_sms);
  Places take;
  for (size_t& schedule : layout.schedules) schedule = take(layout.bytes.index_schedule);
  if (config.index_share.count > 1)
    for (size_t& list : layout.share_lists) list = take(layout.bytes.share_list);
  layout.index = take(layout.bytes.index);
  layout.decode = take(layout.bytes.decode);
  layout.attend = take(layout.bytes.attend);
  layout.rotary = take(2 * sizeof(float) * static_cast<size_t>(config.rotary_dim / 2) *
                       static_cast<size_t>(config.max_queries));
  layout.total = take.end();
  return layout;
}

}  // namespace msa::sm90

namespace msa::gpu {

Status workspace_bytes(const PlanConfig& config, int num_sms, int64_t* bytes) {
  if (Status s = sm90::check_config(config); !s.ok()) return s;
  *bytes = static_cast<int64_t>(sm90::plan_layout(config, num_sms).total);
  return {};
}

}  // namespace msa::gpu
