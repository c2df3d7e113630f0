// SPDX-License-Identifier: Apache-2.0
#include "kv/block_table.h"

#include "base/check.h"

namespace sparrow {

bool BlockTable::reserve(int64_t tokens) {
  while (capacity_tokens() < tokens) {
    const std::optional<BlockId> block = pool_->take();
    if (!block) return false;
    blocks_.push_back(*block);
  }
  return true;
}

void BlockTable::append_shared(BlockId block) {
  pool_->share(block);
  blocks_.push_back(block);
}

BlockTable BlockTable::fork(int64_t tokens) const {
  BlockTable table(*pool_);
  table.blocks_.reserve(blocks_.size() + 1);
  for (int64_t i = 0; i < blocks_for_tokens(tokens); ++i) table.append_shared(blocks_[i]);
  return table;
}

std::optional<BlockCopy> BlockTable::copy_on_write(int64_t logical_block) {
  const BlockId shared = blocks_[logical_block];
  const std::optional<BlockId> own = pool_->take();
  if (!own) return std::nullopt;
  pool_->release(shared);
  blocks_[logical_block] = *own;
  return BlockCopy{shared, *own};
}

void BlockTable::replace(int64_t logical_block, BlockId block) {
  pool_->share(block);
  pool_->release(blocks_[logical_block]);
  blocks_[logical_block] = block;
}

// The last block goes first: when the pool needs room it takes what was released longest ago, and a block is
// of no use to anyone without those before it.
void BlockTable::clear() {
  while (!blocks_.empty()) {
    pool_->release(blocks_.back());
    blocks_.pop_back();
  }
}

void BlockTable::set_pool(BlockPool& pool) {
  SPARROW_CHECK(blocks_.empty());
  pool_ = &pool;
}

}  // namespace sparrow
