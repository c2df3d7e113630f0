// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "msa/sm90/attend/attend_decode.h"
#include "msa/sm90/attend/attend_prefill.h"
#include "msa/sm90/dense/dense.h"
#include "msa/sm90/index/index_params.h"
#include "msa/sm90/plan.h"
#include "msa/sm90/store/store.h"

namespace msa::sm90 {
namespace {

using gpu::Code;
using gpu::Part;
using gpu::PlanConfig;
using gpu::Status;
using gpu::Step;

constexpr int kMaxDecodeQueries = 16;
constexpr int kMaxPlanBlocks = 56 * 1024;  // the prefill kernel's inversion counts them in shared memory
constexpr int kMaxPlanQueries = (1 << 24) - 1;

// Up to so many (query, KV head) pairs a request's queries share too few blocks to be worth inverting the
// selection (H200, 8 to 128 queries).
constexpr int64_t kDecodeKernelPairs = 256;

Status refuse(Code code, const std::string& field, const std::string& rule, int64_t value) {
  return {code, field + " must be " + rule + ", got " + std::to_string(value)};
}

Status need_range(const std::string& field, int64_t value, int64_t low, int64_t high, Code code) {
  if (value >= low && value <= high) return {};
  return refuse(code, field, "in [" + std::to_string(low) + ", " + std::to_string(high) + "]", value);
}

Status check_part(const PlanConfig& config, const std::string& name, const Part& part, bool uniform) {
  if (Status s =
          need_range(name + ".num_requests", part.num_requests, 0, config.max_requests, Code::kCapacity);
      !s.ok())
    return s;
  if (Status s =
          need_range(name + ".total_queries", part.total_queries, 0, config.max_queries, Code::kCapacity);
      !s.ok())
    return s;
  if (part.num_requests == 0 && part.total_queries == 0) return {};
  if (Status s =
          need_range(name + ".num_requests", part.num_requests, 1, config.max_requests, Code::kInvalid);
      !s.ok())
    return s;
  if (Status s = need_range(name + ".max_blocks", part.max_blocks, 1, config.max_blocks, Code::kCapacity);
      !s.ok())
    return s;
  if (part.seq_lens == nullptr) return {Code::kInvalid, name + ".seq_lens must not be null"};
  if (part.block_table == nullptr) return {Code::kInvalid, name + ".block_table must not be null"};
  if (!uniform) {
    if (part.cu_seqlens_q == nullptr) return {Code::kInvalid, name + ".cu_seqlens_q must not be null"};
    return need_range(name + ".max_queries", part.max_queries, 1, std::max(part.total_queries, 1),
                      Code::kInvalid);
  }
  if (part.cu_seqlens_q != nullptr)
    return {Code::kInvalid, name + ".cu_seqlens_q must be null: its requests have equally many queries"};
  if (Status s =
          need_range(name + ".max_queries", part.max_queries, 1, kMaxDecodeQueries, Code::kUnsupported);
      !s.ok())
    return s;
  if (int64_t{part.num_requests} * part.max_queries != part.total_queries)
    return refuse(
        Code::kInvalid, name + ".total_queries",
        "num_requests * max_queries = " + std::to_string(int64_t{part.num_requests} * part.max_queries),
        part.total_queries);
  return {};
}

IndexShape index_shape(const PlanConfig& config, const Part& part, int num_sms) {
  return {part.num_requests, part.total_queries,    part.max_queries, part.max_blocks, config.heads.kv_heads,
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
  const int dim = config.rotary_dim;
  if (dim != 0 && dim != 16 && dim != 32 && dim != 64 && dim != kMaxRotaryDim)
    return refuse(Code::kUnsupported, "rotary_dim", "0, 16, 32, 64 or 128", dim);
  if (static_cast<int>(config.inv_freq.size()) != dim / 2)
    return refuse(Code::kInvalid, "inv_freq", "rotary_dim / 2 = " + std::to_string(dim / 2) + " long",
                  static_cast<int64_t>(config.inv_freq.size()));
  return {};
}

Status check_step(const PlanConfig& config, const Step& step) {
  if (Status s = check_part(config, "decode", step.decode, true); !s.ok()) return s;
  if (Status s = check_part(config, "prefill", step.prefill, false); !s.ok()) return s;
  if (Status s = need_range("decode.num_requests + prefill.num_requests",
                            int64_t{step.decode.num_requests} + step.prefill.num_requests, 0,
                            config.max_requests, Code::kCapacity);
      !s.ok())
    return s;
  return need_range("decode.total_queries + prefill.total_queries",
                    int64_t{step.decode.total_queries} + step.prefill.total_queries, 0, config.max_queries,
                    Code::kCapacity);
}

AttendKernel choose_attend(const PlanConfig& config, const Part& part) {
  if (config.batch_invariant) return AttendKernel::kDecode;
  const bool few = int64_t{part.total_queries} * config.heads.kv_heads <= kDecodeKernelPairs;
  return few || part.max_queries <= kMaxDecodeQueries ? AttendKernel::kDecode : AttendKernel::kPrefill;
}

bool selects_in_attention(const PlanConfig& config, const Part& decode) {
  if (config.batch_invariant || decode.max_queries != 1) return false;
  if (decode.max_blocks <= config.selection.top_k) return true;  // there is nothing to choose
  // With more rows, their CTAs would all start late, behind the scan, and then select.
  constexpr int64_t kFewUnits = 4;
  return int64_t{decode.total_queries} * config.heads.kv_heads <= kFewUnits &&
         decode.max_blocks <= attend_select_blocks();
}

int attend_splits(const PlanConfig& config, const Part& part) {
  constexpr int kInvariantSplits = 4;  // any number would do
  return config.batch_invariant
             ? kInvariantSplits
             : attend_decode_splits(part.total_queries, config.heads.kv_heads, part.num_requests);
}

Regions regions_of(const PlanConfig& config, const Part& part, int num_sms) {
  const IndexShape shape = index_shape(config, part, num_sms);
  const int kv_heads = config.heads.kv_heads, group = config.heads.query_heads / kv_heads;
  Regions r{.index_schedule = index_schedule_bytes(shape), .index = index_workspace_bytes(shape)};
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
  const auto take = [&](size_t bytes) {
    const size_t at = layout.total;
    layout.total += (bytes + 255) / 256 * 256;
    return at;
  };
  for (size_t& schedule : layout.schedules) schedule = take(layout.bytes.index_schedule);
  layout.index = take(layout.bytes.index);
  layout.decode = take(layout.bytes.decode);
  layout.attend = take(layout.bytes.attend);
  layout.rotary = take(sizeof(float2) * static_cast<size_t>(config.rotary_dim / 2) * config.max_queries);
  return layout;
}

std::string describe_step(const PlanConfig& config, const Step& step) {
  std::string text;
  const auto line = [&](const char* name, const Part& part) {
    if (part.total_queries == 0) return;
    const bool scan = !config.batch_invariant && part.max_queries * config.heads.kv_heads <= kMaxScanRows;
    text += std::string(name) + ": " + std::to_string(part.total_queries) + " queries of " +
            std::to_string(part.num_requests) + " requests; index " + (scan ? "scan" : "tile") + "; attend ";
    if (choose_attend(config, part) == AttendKernel::kPrefill) {
      text += "by block (prefill kernel)\n";
    } else {
      const int splits = attend_splits(config, part);
      text +=
          "by query (decode kernel), " + std::to_string(splits) + (splits == 1 ? " split\n" : " splits\n");
    }
  };
  line("decode", step.decode);
  line("prefill", step.prefill);
  return text;
}

}  // namespace msa::sm90
