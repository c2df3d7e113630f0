// SPDX-License-Identifier: Apache-2.0
// A plan's write path, and a whole sparse layer at once.
#include "msa/sm90/plan_state.h"

namespace msa::gpu {

Status Plan::State::check_store(const StoreArgs& args) const {
  if (config.rotary_dim == 0) return {Code::kInvalid, "the plan's rotary_dim must not be 0 for store"};
  if (step.positions == nullptr) return {Code::kInvalid, "the step's positions must not be null for store"};
  const bool sparse = args.index_q.data != nullptr;
  const struct {
    const char* field;
    const void* pointer;
    int64_t stride;
    bool wanted;
  } inputs[] = {
      {"q", args.q.data, args.q.stride, true},
      {"k", args.k.data, args.k.stride, true},
      {"v", args.v.data, args.v.stride, true},
      {"index_q", args.index_q.data, args.index_q.stride, sparse},
      {"index_k", args.index_k.data, args.index_k.stride, sparse},
      {"q_norm", args.q_norm, 0, true},
      {"k_norm", args.k_norm, 0, true},
      {"index_q_norm", args.index_q_norm, 0, sparse},
      {"index_k_norm", args.index_k_norm, 0, sparse},
      {"slots", args.slots, 0, true},
      {"q_out", args.q_out, 0, true},
      {"index_q_out", args.index_q_out, 0, sparse},
      {"kv_pages", args.kv_pages, 0, true},
      {"index_pages", args.index_pages, 0, sparse},
  };
  for (const auto& in : inputs) {
    if (!in.wanted) continue;
    if (Status status = check_pointer(in.field, in.pointer); !status.ok()) return status;
    if (in.stride % 8 != 0)
      return {Code::kInvalid,
              std::string(in.field) + ".stride must be a multiple of 8, got " + std::to_string(in.stride)};
  }
  return {};
}

sm90::StoreParams Plan::State::store_params(const StoreArgs& args) const {
  const auto bf16 = [](const void* data) { return static_cast<const __nv_bfloat16*>(data); };
  const auto rows = [&](const StoreArgs::Rows& r) { return sm90::StoreRows{bf16(r.data), r.stride}; };
  return {.q = rows(args.q),
          .k = rows(args.k),
          .v = rows(args.v),
          .index_q = rows(args.index_q),
          .index_k = rows(args.index_k),
          .q_norm = bf16(args.q_norm),
          .k_norm = bf16(args.k_norm),
          .index_q_norm = bf16(args.index_q_norm),
          .index_k_norm = bf16(args.index_k_norm),
          .rotary = reinterpret_cast<const float2*>(workspace + layout.rotary),
          .slots = args.slots,
          .kv_scales = args.kv_scales,
          .q_out = static_cast<__nv_bfloat16*>(args.q_out),
          .index_q_out = static_cast<__nv_bfloat16*>(args.index_q_out),
          .kv_pages = args.kv_pages,
          .index_pages = args.index_pages,
          .eps = args.eps,
          .rows = this->rows(),
          .query_heads = config.heads.query_heads,
          .kv_heads = config.heads.kv_heads,
          .index_heads = index_heads(),
          .half = config.rotary_dim / 2,
          .kv_type = element_of(config.kv_type),
          .index_type = element_of(config.index_type)};
}

Status Plan::store(const StoreArgs& args, cudaStream_t stream) const {
  const State& s = *state_;
  if (s.rows() == 0) return {};
  if (Status status = s.check_store(args); !status.ok()) return status;
  return cuda_status(sm90::launch_store(s.store_params(args), stream), "launching the store");
}

Status Plan::sparse(const SparseArgs& args, cudaStream_t stream) const {
  const State& s = *state_;
  if (s.rows() == 0) return {};
  if (args.store.index_q.data == nullptr) return {Code::kInvalid, "store.index_q must not be null"};
  if (s.step.shares_index) return {Code::kInvalid, "the step shares the index: it has candidates"};
  const IndexArgs index{args.store.index_q_out, args.store.index_pages, args.num_blocks, args.selected};
  const AttendArgs attend{.q = args.store.q_out,
                          .kv_pages = args.store.kv_pages,
                          .num_blocks = args.num_blocks,
                          .kv_scales = args.store.kv_scales,
                          .selected = args.selected,
                          .out = args.out,
                          .scale = args.scale};
  if (Status status = store(args.store, stream); !status.ok()) return status;
  const Part& part = s.step.decode;
  if (s.step.prefill.total_queries > 0 || !sm90::selects_in_attention(s.config, part)) {
    if (Status status = this->index(index, stream); !status.ok()) return status;
    return this->attend(attend, stream);
  }
  if (Status status = s.check_index(index); !status.ok()) return status;
  if (Status status = s.check_attend(attend); !status.ok()) return status;
  sm90::IndexLaunch l = s.index_launch(part, false);
  l.q = index.q;
  l.k_pages = index.k_pages;
  l.num_pages = index.num_blocks;
  sm90::IndexScores scores;
  if (const cudaError_t error = sm90::launch_scores(l, &scores, stream); error != cudaSuccess)
    return cuda_status(error, "launching the index");
  sm90::AttendDecodeParams p = s.decode_params(part, attend);
  p.select = {scores.scores,
              args.selected,
              scores.counter,
              scores.units_per_block,
              s.config.selection.local_blocks,
              s.config.selection.init_blocks};
  return cuda_status(sm90::launch_attend_decode(p, s.decode_type(), stream), "launching sparse attention");
}

}  // namespace msa::gpu
