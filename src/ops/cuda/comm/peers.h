// SPDX-License-Identifier: Apache-2.0
// Peers: the memory that ranks of one node write into each other, as kernels see it. Every rank's memory is
// laid out alike: a place in one's own is the same distance into every other's. Free of CUDA: a plan counts
// with it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparrow::ops::cuda {

inline constexpr int kMaxPeers = 8;  // ranks of a node

// Words at the start of a rank's memory. Zeros before the first exchange. Flags hold the number of the last
// exchange that they were raised for; they lie in lines of their own, since several GPUs write them.
struct PeerWords {
  static constexpr int kLine = 32;  // words

  uint32_t few_done, many_done;  // exchanges of either kind that are over here
  uint32_t collects_done;        // logits and ids: groups may differ in how many they have
  uint32_t lists_done;           // of blocks
  uint32_t ctas_done;            // of the running launch
  uint32_t failed;               // somebody was waited for in vain: nobody is waited for from then on
  uint32_t padding[kLine - 6];
  struct Flags {
    uint32_t ready[kMaxPeers][kLine];  // by rank: what it has to give may be read
    uint32_t done[kMaxPeers][kLine];   // by rank: what it had to give is here
  } many, collects, lists;
};

// Few rows go to every rank that wants them, and wait there in mailboxes; more go to one rank, which adds
// them up for all. With few ranks the first way is as short in bytes.
inline constexpr int kMailboxRows = 128;  // of all ranks together, in one of the two sets
// Of each group: a group's rows always lie in the same part of the mailboxes.
constexpr int few_exchange_rows(int ranks, int groups = 1) {
  return kMailboxRows / ranks / groups;
}

// What the index of a rank says of one row and head: 64-bit candidates.
inline constexpr int kListWords = 16;

// A mailbox word that has not arrived: two bf16, or one f32, that are no number and that no sum gives.
inline constexpr uint32_t kEmptyWord = 0xffffffff;
constexpr size_t mailbox_bytes(int hidden, size_t partial_bytes) {
  return size_t{2} * kMailboxRows * static_cast<size_t>(hidden) * partial_bytes;
}

struct Peers {
  std::byte* memory[kMaxPeers];  // of every rank, as this one sees it; PeerWords come first
  std::byte* mailbox;            // in one's own: mailbox_bytes, kEmptyWord before the first exchange
  int rank = 0, size = 1;
  // Whoever waits longer than this gives up, and says so in a word of the host's: 1 + the rank waited for.
  uint64_t patience_ns = 20'000'000'000;
  uint32_t* report = nullptr;
  // Other ranks run on the same GPU: the next kernel must not take its place while this one waits for them.
  bool shared_gpu = false;
};

}  // namespace sparrow::ops::cuda
