// SPDX-License-Identifier: Apache-2.0
#include "comm/host/host_comm.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/strf.h"
#include "comm/tree_sum.h"

namespace sparrow {

struct HostComm::Area {
  alignas(64) SharedWord arrived;
  alignas(64) SharedWord round;
  // Written when all have come, that is, when all have taken what was there.
  alignas(64) std::byte sum[kSlot];
  // Two sets by turns: a rank may put in its next part while others still read this one, and cannot get
  // further before they have come, too.
  Slot slots[];
};

size_t HostComm::bytes_for(int max_size) {
  return sizeof(Area) + 2 * static_cast<size_t>(max_size) * sizeof(Slot);
}

HostComm::HostComm(std::byte* memory, std::vector<int> members, int rank, std::vector<int> here, Life& life,
                   Peers& peers, std::unique_ptr<NodeExchange> nodes)
    : area_(*std::launder(reinterpret_cast<Area*>(memory))),
      members_(std::move(members)),
      rank_(rank),
      here_(std::move(here)),
      life_(life),
      peers_(peers),
      nodes_(std::move(nodes)),
      several_nodes_(here_.size() < members_.size()) {}

std::span<HostComm::Slot> HostComm::slots() const {
  return {area_.slots + (round_ & 1) * members_.size(), members_.size()};
}

std::span<std::byte> HostComm::put(int64_t bytes) {
  Slot& mine = slots()[static_cast<size_t>(rank_)];
  mine.bytes = static_cast<uint64_t>(bytes);
  return {mine.data, static_cast<size_t>(bytes)};
}

// Of the round that was just over.
std::span<const std::byte> HostComm::slot(int rank, int64_t bytes) const {
  const Slot* const before = area_.slots + ((round_ - 1) & 1) * members_.size();
  return {before[rank].data, static_cast<size_t>(bytes)};
}

template <typename Done>
bool HostComm::wait(SharedWord& word, Done&& done) {
  const auto start = std::chrono::steady_clock::now();
  const bool waited = patience_.wait(word, done, [this] { return life_.failed() || life_.any_left(); });
  wait_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return waited;
}

bool HostComm::wait_for_round(uint32_t round) {
  return wait(area_.round, [&] { return area_.round.value.load(std::memory_order_seq_cst) != round; });
}

// Everybody has put its part in. Sums, where the call wants that, and lets all go on.
bool HostComm::work(uint64_t tag) {
  if (nodes_) {
    const Status exchanged = nodes_->exchange(slots());
    if (!exchanged.ok() && !life_.failed())
      peers_.fail_later(members_[static_cast<size_t>(rank_)], exchanged.error().message);
    if (!exchanged.ok()) return false;
  }
  std::vector<const float*> parts;
  for (const Slot& slot : slots()) {
    if (slot.tag != tag) {
      const auto other = static_cast<size_t>(&slot - slots().data());
      peers_.fail(members_[other], strf("it makes another collective call than rank {}",
                                        members_[static_cast<size_t>(rank_)]));
      return false;
    }
    parts.push_back(reinterpret_cast<const float*>(slot.data));
  }
  const auto kind = static_cast<Kind>(tag >> 56);
  if (kind == Kind::kAllReduce || kind == Kind::kReduceScatter)
    tree_sum(parts, static_cast<int64_t>(slots()[0].bytes / sizeof(float)),
             reinterpret_cast<float*>(area_.sum));
  area_.arrived.value.store(0, std::memory_order_seq_cst);
  area_.round.add(1);
  return true;
}

bool HostComm::meet(Kind kind, int64_t total, int64_t begin) {
  if (failed()) return false;
  const uint64_t tag = static_cast<uint64_t>(kind) << 56 ^ static_cast<uint64_t>(total) << 20 ^
                       static_cast<uint64_t>(begin / static_cast<int64_t>(kSlot));
  slots()[static_cast<size_t>(rank_)].tag = tag;
  const auto all = static_cast<uint32_t>(here_.size());
  bool met;
  if (several_nodes_ && nodes_) {
    const auto here = [&] { return area_.arrived.value.load(std::memory_order_seq_cst) == all - 1; };
    met = wait(area_.arrived, here) && work(tag);
  } else if (several_nodes_) {
    area_.arrived.add(1);
    met = wait_for_round(round_);
  } else {
    const bool last = area_.arrived.value.fetch_add(1, std::memory_order_seq_cst) + 1 == all;
    met = last ? work(tag) : wait_for_round(round_);
  }
  ++round_;
  if (!met) gave_up_ = true;
  return met;
}

template <typename Take>
void HostComm::sum_pieces(Kind kind, const Tensor& x, Take&& take) {
  SPARROW_CHECK(x.dtype == DType::kF32 && x.device == Device::kCpu);
  const int64_t total = byte_size(x);
  for (int64_t begin = 0; begin < total; begin += kSlot) {
    const int64_t n = std::min<int64_t>(kSlot, total - begin);
    copy_from(x, begin, put(n));
    if (!meet(kind, total, begin)) return;
    take(begin, std::span<const std::byte>(area_.sum, static_cast<size_t>(n)));
  }
}

void HostComm::all_reduce(const Tensor& x) {
  sum_pieces(Kind::kAllReduce, x,
             [&](int64_t begin, std::span<const std::byte> sum) { copy_to(x, begin, sum); });
}

void HostComm::reduce_scatter_rows(const Tensor& x, std::span<const int64_t> rows, const Tensor& mine) {
  SPARROW_CHECK_EQ(std::reduce(rows.begin(), rows.end()), x.rows());
  SPARROW_CHECK_EQ(mine.rows(), rows[static_cast<size_t>(rank_)]);
  if (x.rows() == 0) return;
  const int64_t row_bytes = byte_size(x) / x.rows();
  const int64_t first = std::reduce(rows.begin(), rows.begin() + rank_) * row_bytes;
  const int64_t last = first + byte_size(mine);
  sum_pieces(Kind::kReduceScatter, x, [&](int64_t begin, std::span<const std::byte> sum) {
    const int64_t from = std::max(first, begin);
    const int64_t to = std::min(last, begin + static_cast<int64_t>(sum.size()));
    if (from < to)
      copy_to(mine, from - first,
              sum.subspan(static_cast<size_t>(from - begin), static_cast<size_t>(to - from)));
  });
}

void HostComm::all_gather_rows(const Tensor& mine, std::span<const int64_t> rows, const Tensor& all) {
  SPARROW_CHECK_EQ(std::reduce(rows.begin(), rows.end()), all.rows());
  SPARROW_CHECK_EQ(mine.rows(), rows[static_cast<size_t>(rank_)]);
  if (all.rows() == 0) return;
  const int64_t row_bytes = byte_size(all) / all.rows();
  const int64_t longest = *std::max_element(rows.begin(), rows.end()) * row_bytes;
  for (int64_t begin = 0; begin < longest; begin += kSlot) {
    const auto piece = [&](int rank) {
      return std::clamp<int64_t>(rows[static_cast<size_t>(rank)] * row_bytes - begin, 0, kSlot);
    };
    copy_from(mine, begin, put(piece(rank_)));
    if (!meet(Kind::kAllGather, byte_size(all), begin)) return;
    int64_t at = begin;
    for (int r = 0; r < size(); at += rows[static_cast<size_t>(r++)] * row_bytes)
      copy_to(all, at, slot(r, piece(r)));
  }
}

void HostComm::gather(const Tensor& x, int root, const Tensor& all) {
  const int64_t total = byte_size(x);
  for (int64_t begin = 0; begin < total; begin += kSlot) {
    const int64_t n = std::min<int64_t>(kSlot, total - begin);
    copy_from(x, begin, put(n));
    if (!meet(Kind::kGather, total, begin)) return;
    for (int r = 0; rank_ == root && r < size(); ++r) copy_to(all, r * total + begin, slot(r, n));
  }
}

void HostComm::broadcast(const Tensor& x, int root) {
  const int64_t total = byte_size(x);
  for (int64_t begin = 0; begin < total; begin += kSlot) {
    const int64_t n = std::min<int64_t>(kSlot, total - begin);
    if (rank_ == root)
      copy_from(x, begin, put(n));
    else
      put(0);
    if (!meet(Kind::kBroadcast, total, begin)) return;
    if (rank_ != root) copy_to(x, begin, slot(root, n));
  }
}

void HostComm::abort() {
  peers_.fail(members_[static_cast<size_t>(rank_)], "it gave up");
}

bool HostComm::failed() const {
  return gave_up_ || life_.failed();
}

}  // namespace sparrow
