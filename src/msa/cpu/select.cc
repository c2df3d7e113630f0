// SPDX-License-Identifier: Apache-2.0
#include "msa/cpu/select.h"

#include <algorithm>

namespace msa {
namespace {

// Blocks forced by position. Where they outnumber the places, the local blocks go first, nearest to the query
// first, then the init blocks, nearest to the query first.
struct Forced {
  int init_first = 0, init_end = 0;    // init blocks that are not local as well
  int local_first = 0, local_end = 0;  // ends after the own block
  int count() const { return init_end - init_first + local_end - local_first; }
};

Forced forced_blocks(const Selection& selection, int own) {
  Forced forced;
  forced.local_end = own + 1;
  forced.local_first = std::max(0, own + 1 - std::min(selection.local_blocks, selection.top_k));
  forced.init_end = std::min({selection.init_blocks, std::max(0, own + 1 - selection.local_blocks)});
  const int places = selection.top_k - (forced.local_end - forced.local_first);
  forced.init_first = std::max(0, forced.init_end - places);
  return forced;
}

// Keeps the `places` best, best first. Of equal scores the one that was there stays ahead.
struct Best {
  Candidate* list;
  int places, count = 0;

  void add(Candidate candidate) {
    if (count == places && !(count > 0 && is_before(candidate, list[count - 1]))) return;
    int at = count == places ? count - 1 : count++;
    for (; at > 0 && is_before(candidate, list[at - 1]); --at) list[at] = list[at - 1];
    list[at] = candidate;
  }

  static bool is_before(const Candidate& a, const Candidate& b) {
    return a.score > b.score || (a.score == b.score && a.block < b.block);
  }
};

}  // namespace

ScoredRange scored_range(const Selection& selection, int own) {
  const Forced forced = forced_blocks(selection, own);
  const bool all_chosen = own + 1 <= selection.top_k;
  if (all_chosen || forced.count() == selection.top_k) return {};
  return {forced.init_end, forced.local_first};
}

void best_blocks(const float* scores, const int32_t* blocks, int count, int top_k, Candidate* best) {
  Best kept{best, top_k};
  for (int i = 0; i < count; ++i) kept.add({scores[i], blocks[i]});
  std::fill(best + kept.count, best + top_k, Candidate{});
}

void select_blocks(const Selection& selection, int own, const Candidate* lists, int num_lists, int64_t stride,
                   int32_t* selected) {
  int count = 0;
  if (own + 1 <= selection.top_k) {
    for (; count <= own; ++count) selected[count] = count;
  } else {
    const Forced forced = forced_blocks(selection, own);
    for (int n = forced.init_first; n < forced.init_end; ++n) selected[count++] = n;
    Candidate best[kMaxTopK];
    Best kept{best, selection.top_k - forced.count()};
    for (int list = 0; list < num_lists; ++list)
      for (const Candidate* c = lists + list * stride; c < lists + list * stride + selection.top_k; ++c)
        if (c->block >= 0) kept.add(*c);
    const int first_chosen = count;
    for (int i = 0; i < kept.count; ++i) selected[count++] = best[i].block;
    std::sort(selected + first_chosen, selected + count);
    for (int n = forced.local_first; n < forced.local_end; ++n) selected[count++] = n;
  }
  for (; count < selection.top_k; ++count) selected[count] = -1;
}

}  // namespace msa
