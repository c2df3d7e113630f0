// SPDX-License-Identifier: Apache-2.0
// What ranks of one node do over each other's memory, a launch each: sum rows of activations over ranks, add
// the residual and normalise; collect logits; hand out ids. Every rank launches the same in the same order.
//
// A sum is a binary tree over the ranks, ((0 + 1) + (2 + 3)) + ..., in f32, and is rounded once, with the
// residual in it: every rank has the same bits, for few rows and for many.
//
// Few rows (few_exchange_rows): each rank writes its partial rows into every destination's mailbox. There are
// no flags: a word has arrived when it is not empty, so nothing depends on the order in which stores arrive,
// and whoever has read a word makes it empty again. Two sets of mailboxes take turns. That is enough: a rank
// that starts exchange e + 2 has ended e + 1, so it has heard from all others in e + 1, so all others have
// ended e, and the set of e is read and empty. For this every rank hears from every other in every exchange:
// each group has at least one row. Where there are several groups, see docs/exchange.md.
//
// Many rows: row r of a group belongs to one of those who keep its residual, r mod their number, who reads
// its partial rows where the others left them, sums, adds the residual, which it alone has, normalises and
// writes the result to all who want it. Two flags for each rank, whose values only grow: partial rows are
// there; results are there. A rank that raises the first has used the results of the exchange before, and
// whoever has seen all of the second may overwrite its partial rows.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/comm/peers.h"

namespace sparrow::ops::cuda {

// Parts of an exchange. Ranks that take turns on one stream may not wait for each other in a kernel: each
// launches the first part, then each the second, then each the third.
enum ExchangePhase : int { kGive = 1, kTake = 2, kLeave = 4, kAllPhases = 7 };

// Ranks [begin, end).
struct RankRange {
  int begin = 0, end = 1;

  constexpr int size() const { return end - begin; }
};

// Rows of one group of ranks after those of another. Each row is summed over its sources, added to the
// residual that its keepers have, and wanted by its destinations. Those who keep a group's residual are among
// its destinations; others get a row of it with the parts where rows are few.
struct RowGroups {
  int count = 1;
  int first_row[kMaxPeers + 1] = {};  // of each group, and the end
  RankRange sources[kMaxPeers], destinations[kMaxPeers], keepers[kMaxPeers];
  RankRange ranks;  // all of the above, who launch this
  // Where a group's rows begin: in partial, in out, in mailboxes. In the residual it is row 0.
  int first_partial_row[kMaxPeers] = {}, first_out_row[kMaxPeers] = {}, first_mailbox_row[kMaxPeers] = {};
};
// All ranks add up all rows, and want them.
RowGroups one_group(int ranks, int rows);

struct ExchangeArgs {
  Peers peers;
  RowGroups groups;
  const void* partial = nullptr;  // [*, hidden] this rank's part of the sum: bf16 or, f32_partials, f32
  const __nv_bfloat16* residual = nullptr;  // [*, hidden]; nullptr: none
  __nv_bfloat16* residual_out = nullptr;    // [*, hidden], may be residual; nullptr: not wanted
  const int32_t* row_list = nullptr;  // [rows] rows of their group in the step; nullptr: all, in their order
  const __nv_bfloat16* weight = nullptr;  // [hidden] of the norm
  __nv_bfloat16* out = nullptr;           // [rows, hidden]
  int rows = 0, hidden = 0;
  float eps = 0;
  bool f32_partials = false;
  // Many rows, and then partial and out lie in the peers' memory. The same in a whole step, since the
  // residual is on all ranks in one form and on one in the other.
  bool many = false;
  int phases = kAllPhases;
};
// out[i] = rms_norm(bf16(residual[r] + sum over the ranks of partial[r])), r = row_list[i].
void exchange_norm(const ExchangeArgs& args, cudaStream_t stream);

// all[row, place * cols + c] = x[row, c] of the rank at that place of `ranks`, on the first of them.
struct CollectArgs {
  Peers peers;
  RankRange ranks;
  const float* x = nullptr;  // [rows, cols]
  float* all = nullptr;      // [rows, ranks * cols] in the peers' memory
  int rows = 0, cols = 0;
  int phases = kAllPhases;
};
void collect_columns(const CollectArgs& args, cudaStream_t stream);

// all[place, row, h] = the list of row and head heads[own place] + h of the rank at that place of `ranks`:
// each gets those of its own heads. The lists it got before must have been used: a sum over the same ranks
// lies between two such exchanges, in which each hears from all.
struct ListsArgs {
  Peers peers;
  RankRange ranks;
  const uint64_t* mine = nullptr;  // [rows, index_heads, kListWords], own heads first, others by ascending id
  uint64_t* all = nullptr;         // [ranks, rows, own_heads, kListWords] in the peers' memory
  int rows = 0, index_heads = 0, own_heads = 0;
  int first_head[kMaxPeers] = {};  // by place: of the heads that are its own
  int phases = kAllPhases;
};
void exchange_lists(const ListsArgs& args, cudaStream_t stream);

// everywhere[i] = ids[i] of the first of `ranks`, on all others of them.
struct HandOutArgs {
  Peers peers;
  RankRange ranks;
  const int32_t* ids = nullptr;   // [count]; on the first rank
  int32_t* everywhere = nullptr;  // [count] in the peers' memory
  int count = 0;
  int phases = kAllPhases;
};
void hand_out_ids(const HandOutArgs& args, cudaStream_t stream);

}  // namespace sparrow::ops::cuda
