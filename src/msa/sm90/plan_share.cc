// SPDX-License-Identifier: Apache-2.0
// A plan's index where several ranks score a share of the blocks each.
#include "msa/sm90/plan_state.h"

namespace msa::gpu {

static_assert(kCandidates == sm90::kListLength);

Status Plan::candidates(const CandidateArgs& args, cudaStream_t stream) const {
  const State& s = *state_;
  if (s.rows() == 0) return {};
  if (!s.step.shares_index) return {Code::kInvalid, "the step does not share the index"};
  if (Status status = check_pointer("q", args.q); !status.ok()) return status;
  if (Status status = check_pointer("k_pages", args.k_pages); !status.ok()) return status;
  if (Status status = check_pointer("candidates", args.candidates); !status.ok()) return status;
  if (Status status = check_blocks(args.num_blocks, 2); !status.ok()) return status;
  int64_t row = 0;
  for (const Part* part : {&s.step.decode, &s.step.prefill}) {
    if (part->total_queries == 0) continue;
    sm90::IndexLaunch l = s.index_launch(*part, part == &s.step.prefill);
    l.q = static_cast<const char*>(args.q) + 2 * row * s.index_row();  // bf16
    l.k_pages = args.k_pages;
    l.num_pages = args.num_blocks;
    l.candidates = args.candidates + row * s.index_heads() * kCandidates;
    if (const cudaError_t error = sm90::launch_candidates(l, stream); error != cudaSuccess)
      return cuda_status(error, "launching the index of a share");
    row += part->total_queries;
  }
  return {};
}

Status Plan::select(const SelectArgs& args, cudaStream_t stream) const {
  const State& s = *state_;
  if (s.rows() == 0) return {};
  if (!s.step.shares_index) return {Code::kInvalid, "the step does not share the index"};
  if (Status status = check_pointer("candidates", args.candidates); !status.ok()) return status;
  if (Status status = check_pointer("selected", args.selected); !status.ok()) return status;
  const int heads = s.config.heads.kv_heads;
  int64_t row = 0;
  for (const Part* part : {&s.step.decode, &s.step.prefill}) {
    if (part->total_queries == 0) continue;
    sm90::IndexGather g{.shape = s.index_launch(*part, part == &s.step.prefill).shape,
                        .selection = s.config.selection,
                        .cu_seqlens_q = part->cu_seqlens_q,
                        .seq_lens = part->seq_lens,
                        .num_shares = s.config.index_share.count,
                        .index_heads = heads,
                        .candidates = args.candidates + row * heads * kCandidates,
                        .share_stride = int64_t{s.rows()} * heads * kCandidates,
                        .selected = args.selected + row * s.selected_row()};
    g.shape.heads = heads;
    if (const cudaError_t error = sm90::launch_gather(g, stream); error != cudaSuccess)
      return cuda_status(error, "launching the selection from all shares");
    row += part->total_queries;
  }
  return {};
}

}  // namespace msa::gpu
