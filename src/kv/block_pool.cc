// SPDX-License-Identifier: Apache-2.0
#include "kv/block_pool.h"

#include <random>
#include <utility>

#include "base/check.h"

namespace sparrow {

BlockPool::BlockPool(int num_blocks, std::optional<uint64_t> order_seed) : blocks_(num_blocks) {
  free_.reserve(num_blocks);
  for (BlockId block = num_blocks; block-- > 0;) free_.push_back(block);
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
    blocks_[block].kept = false;
  } else {
    return std::nullopt;
  }
  blocks_[block].owners = 1;
  ++num_in_use_;
  return block;
}

void BlockPool::share(BlockId block) {
  SPARROW_CHECK(blocks_[block].owners > 0 || blocks_[block].kept);
  if (blocks_[block].owners++ > 0) return;
  unlink(block);
  ++num_in_use_;
}

void BlockPool::release(BlockId block) {
  check_in_use(block);
  if (--blocks_[block].owners > 0) return;
  --num_in_use_;
  if (blocks_[block].kept)
    link(block);
  else
    free_.push_back(block);
}

void BlockPool::keep(BlockId block) {
  check_in_use(block);
  blocks_[block].kept = true;
}

void BlockPool::keep_nothing() {
  while (newest_ != kNone) {
    free_.push_back(newest_);
    unlink(newest_);
  }
  for (Block& block : blocks_) block.kept = false;
}

void BlockPool::link(BlockId block) {
  blocks_[block].previous = newest_;
  blocks_[block].next = kNone;
  (newest_ == kNone ? oldest_ : blocks_[newest_].next) = block;
  newest_ = block;
  ++num_cached_;
}

void BlockPool::unlink(BlockId block) {
  const Block& b = blocks_[block];
  (b.previous == kNone ? oldest_ : blocks_[b.previous].next) = b.next;
  (b.next == kNone ? newest_ : blocks_[b.next].previous) = b.previous;
  --num_cached_;
}

void BlockPool::check_in_use(BlockId block) const {
  SPARROW_CHECK_LE(0, block);
  SPARROW_CHECK_LT(block, num_blocks());
  SPARROW_CHECK(blocks_[block].owners > 0);
}

}  // namespace sparrow
