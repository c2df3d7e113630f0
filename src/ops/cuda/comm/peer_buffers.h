// SPDX-License-Identifier: Apache-2.0
// PeerBuffers: what ranks of a node write into each other's memory, laid out alike on all of them, for the
// largest step. Host arithmetic only: Bf16 is __nv_bfloat16 where there is CUDA, and BFloat16 where one only
// counts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/math.h"
#include "device/arena.h"
#include "ops/cuda/comm/peers.h"

namespace sparrow::ops::cuda {

struct PeerShape {
  int hidden = 0, vocabulary = 0;
  int max_rows = 0;                   // of a step, of all groups
  int max_logits = 0, max_draws = 0;  // of a step, of one; of logits, those kept at a time
  bool f32_partials = false;
  int64_t max_lists = 0;    // of blocks, of a step: one for each rank, row and index head of this rank
  bool peer_memory = true;  // else messages come by NCCL, and there are no words and mailboxes

  size_t partial_bytes() const { return f32_partials ? sizeof(float) : sizeof(BFloat16); }
};

template <typename Bf16>
struct PeerBuffers {
  PeerWords* words;
  std::byte* mailbox;
  Bf16 *normed, *delta;  // [rows, hidden] what the ranks agree on; each one's own part of a sum, or,
  float* sums;           // f32_partials, [rows, hidden] instead of delta
  float* logits;         // [logits, vocabulary] on the rank that draws
  int32_t* ids;          // [draws] that it drew, on the others
  uint64_t* lists;       // [ranks of the group, rows, index heads, kListWords] of all ranks

  const void* partial() const { return sums != nullptr ? static_cast<const void*>(sums) : delta; }
};

template <typename Bf16>
PeerBuffers<Bf16> lay_out_peers(Arena& arena, const PeerShape& shape) {
  const int64_t rows = int64_t{shape.max_rows} * shape.hidden;
  PeerBuffers<Bf16> at{};
  if (shape.peer_memory) {
    at.words = arena.take<PeerWords>(1);
    at.mailbox =
        arena.take<std::byte>(static_cast<int64_t>(mailbox_bytes(shape.hidden, shape.partial_bytes())));
  }
  at.normed = arena.take<Bf16>(rows);
  if (shape.f32_partials)
    at.sums = arena.take<float>(rows);
  else
    at.delta = arena.take<Bf16>(rows);
  at.logits = arena.take<float>(int64_t{shape.max_logits} * shape.vocabulary);
  at.ids = arena.take<int32_t>(shape.max_draws);
  at.lists = arena.take<uint64_t>(shape.max_lists * kListWords);
  return at;
}

// What a rank takes for them. A piece of memory that is handed to other processes begins and ends with a page
// of the GPU's: what shared one would be handed out with it.
inline int64_t peer_bytes(const PeerShape& shape) {
  constexpr int64_t kPage = int64_t{2} << 20;
  Arena counted;
  lay_out_peers<BFloat16>(counted, shape);
  return round_up(static_cast<int64_t>(counted.used()), kPage);
}

// And of the host's memory, page-locked: the word in which kernels say for whom they waited in vain.
inline constexpr int64_t kPeerReportBytes = sizeof(uint32_t);

}  // namespace sparrow::ops::cuda
