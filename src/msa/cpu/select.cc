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

// The `places` best of [first, end), best first, into `best`. Scanning ids upwards and replacing on strictly
// greater scores only gives ties to the lower id.
int best_blocks(const float* scores, ScoredRange range, int places, int32_t* best) {
  float best_scores[kMaxTopK];
  int count = 0;
  for (int n = range.first; n < range.end; ++n) {
    const float score = scores[n];
    if (count == places && !(score > best_scores[count - 1])) continue;
    int at = count == places ? count - 1 : count++;
    for (; at > 0 && score > best_scores[at - 1]; --at) {
      best_scores[at] = best_scores[at - 1];
      best[at] = best[at - 1];
    }
    best_scores[at] = score;
    best[at] = n;
  }
  return count;
}

}  // namespace

ScoredRange scored_range(const Selection& selection, int own) {
  const Forced forced = forced_blocks(selection, own);
  const bool all_chosen = own + 1 <= selection.top_k;
  if (all_chosen || forced.count() == selection.top_k) return {};
  return {forced.init_end, forced.local_first};
}

void select_blocks(const Selection& selection, int own, const float* scores, int32_t* selected) {
  int count = 0;
  if (own + 1 <= selection.top_k) {
    for (; count <= own; ++count) selected[count] = count;
  } else {
    const Forced forced = forced_blocks(selection, own);
    for (int n = forced.init_first; n < forced.init_end; ++n) selected[count++] = n;
    const int first_chosen = count;
    count +=
        best_blocks(scores, scored_range(selection, own), selection.top_k - forced.count(), selected + count);
    std::sort(selected + first_chosen, selected + count);
    for (int n = forced.local_first; n < forced.local_end; ++n) selected[count++] = n;
  }
  for (; count < selection.top_k; ++count) selected[count] = -1;
}

}  // namespace msa
