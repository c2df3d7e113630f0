// SPDX-License-Identifier: Apache-2.0
#include "engine/memory/draw_layout.h"

#include <algorithm>
#include <cstdint>

#include "base/math.h"
#include "engine/request.h"
#include "ops/sample_batch.h"

namespace sparrow {
namespace {

using ops::cuda::LogprobsRow;
using ops::cuda::PackedRow;
using ops::cuda::SampleStatus;

constexpr size_t kAlignment = 16;
static_assert(kMaxTopLogprobs <= ops::cuda::kMaxLogprobs);

// Lists of one draw that are sent at the same time as everybody else's, as a rule: 8,192 ids that a penalty
// counts.
constexpr size_t kListBytes = size_t{64} << 10;

// The longest lists of one draw. validate() holds each list of a request to the vocabulary.
size_t longest_lists(const DrawLimits& limits) {
  const auto ids = static_cast<size_t>(limits.vocab_size);
  const size_t seen = 2 * ids, bias = 2 * ids, allowed = ids, banned = ids;
  const size_t ends = ids + static_cast<size_t>(limits.num_end_ids);
  const size_t mask = (ids + 31) / 32;
  return sizeof(int32_t) * (seen + bias + allowed + banned + ends + mask);
}

size_t wanted_bytes(int wanted) {
  return round_up(static_cast<size_t>(wanted) * sizeof(LogprobsRow), kAlignment);
}

}  // namespace

DrawBuffer::DrawBuffer(const DrawLimits& limits) {
  const auto draws = static_cast<size_t>(limits.max_draws);
  const int wanted = std::max(limits.max_draws, limits.max_logits);
  batch_bytes =
      round_up(draws * sizeof(PackedRow) + std::max(longest_lists(limits), draws * kListBytes), kAlignment);
  results = wanted_bytes(wanted) + batch_bytes;
  bytes = lay_out(limits.max_draws, wanted, kMaxTopLogprobs).end;
}

DrawLayout DrawBuffer::lay_out(int draws, int wanted, int top_stride) const {
  size_t used = results;
  const auto take = [&](size_t count, size_t size) {
    const size_t at = used;
    used = round_up(used + count * size, kAlignment);
    return at;
  };
  const auto rows = static_cast<size_t>(draws), scored = static_cast<size_t>(wanted);
  const size_t tops = scored * static_cast<size_t>(top_stride);
  DrawLayout l{.wanted = 0, .batch = wanted_bytes(wanted)};
  l.ids = take(rows, sizeof(int32_t));
  l.status = take(rows, sizeof(SampleStatus));
  l.logprob = take(scored, sizeof(float));
  l.rank = take(scored, sizeof(int32_t));
  l.top_ids = take(tops, sizeof(int32_t));
  l.top_logprobs = take(tops, sizeof(float));
  l.end = used;
  return l;
}

}  // namespace sparrow
