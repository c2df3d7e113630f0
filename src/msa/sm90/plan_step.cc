// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "msa/layout/index_layout.h"
#include "msa/sm90/attend/attend_decode.h"
#include "msa/sm90/plan.h"

namespace msa::sm90 {
namespace {

using gpu::Code;
using gpu::Part;
using gpu::PlanConfig;
using gpu::Status;
using gpu::Step;

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

}  // namespace

Status check_step(const PlanConfig& config, const Step& step) {
  if (step.shares_index && config.index_share.count < 2)
    return {Code::kInvalid, "shares_index: the plan has the whole index"};
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
