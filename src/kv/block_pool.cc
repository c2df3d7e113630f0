// SPDX-License-Identifier: Apache-2.0
#include "kv/block_pool.h"

#include <random>
#include <utility>

#include "base/check.h"

namespace sparrow {

BlockPool::BlockPool(int num_blocks, std::optional<uint64_t> order_seed, BlockId first)
    : first_(first), blocks_(num_blocks) {
  free_.reserve(num_blocks);
  for (BlockId block = first + num_blocks; block-- > first;) free_.push_back(block);
  if (!order_seed) return;
  std::mt19937_64 random(*order_seed);
  for (size_t i = free_.size(); i > 1; --i) std::swap(free_[i - 1], free_[random() % i]);
}

std::optional<BlockId> BlockPool::take() {
  BlockId block = oldest_;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else if (block != kNone) {
    if (forget_) forget_(block);
    unlink(block);
    at(block).kept = false;
  } else {
    return std::nullopt;
  }
  at(block).owners = 1;
  ++num_in_use_;
  return block;
}

void BlockPool::share(BlockId block) {
  check_own(block);
  SPARROW_CHECK(at(block).owners > 0 || at(block).kept);
  if (at(block).owners++ > 0) return;
  unlink(block);
  ++num_in_use_;
}

void BlockPool::release(BlockId block) {
  check_in_use(block);
  if (--at(block).owners > 0) return;
  --num_in_use_;
  if (at(block).kept)
    link(block);
  else
    free_.push_back(block);
}

void BlockPool::keep(BlockId block) {
  check_in_use(block);
  at(block).kept = true;
}

void BlockPool::keep_nothing() {
  while (newest_ != kNone) {
    free_.push_back(newest_);
    unlink(newest_);
  }
  for (Block& block : blocks_) block.kept = false;
}

void BlockPool::link(BlockId block) {
  at(block).previous = newest_;
  at(block).next = kNone;
  (newest_ == kNone ? oldest_ : at(newest_).next) = block;
  newest_ = block;
  ++num_cached_;
}

void BlockPool::unlink(BlockId block) {
  const Block& b = at(block);
  (b.previous == kNone ? oldest_ : at(b.previous).next) = b.next;
  (b.next == kNone ? newest_ : at(b.next).previous) = b.previous;
  --num_cached_;
}

void BlockPool::check_own(BlockId block) const {
  SPARROW_CHECK_LE(first_, block);
  SPARROW_CHECK_LT(block, first_ + num_blocks());
}

void BlockPool::check_in_use(BlockId block) const {
  check_own(block);
  SPARROW_CHECK(num_owners(block) > 0);
}

}  // namespace sparrow
