// SPDX-License-Identifier: Apache-2.0
#include "kv/block_pool.h"

#include <random>
#include <utility>

#include "base/check.h"

namespace sparrow {

BlockPool::BlockPool(int num_blocks, std::optional<uint64_t> order_seed) : in_use_(num_blocks, 0) {
  for (BlockId block = num_blocks; block-- > 0;) free_.push_back(block);
  if (!order_seed) return;
  std::mt19937_64 random(*order_seed);
  for (size_t i = free_.size(); i > 1; --i) std::swap(free_[i - 1], free_[random() % i]);
}

std::optional<BlockId> BlockPool::take() {
  if (free_.empty()) return std::nullopt;
  const BlockId block = free_.back();
  free_.pop_back();
  in_use_[block] = 1;
  return block;
}

void BlockPool::release(BlockId block) {
  SPARROW_CHECK_LE(0, block);
  SPARROW_CHECK_LT(block, num_blocks());
  SPARROW_CHECK(in_use_[block]);
  in_use_[block] = 0;
  free_.push_back(block);
}

}  // namespace sparrow
