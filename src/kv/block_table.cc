// SPDX-License-Identifier: Apache-2.0
#include "kv/block_table.h"

namespace sparrow {

bool BlockTable::reserve(int64_t tokens) {
  while (static_cast<int64_t>(blocks_.size()) < blocks_for_tokens(tokens)) {
    const std::optional<BlockId> block = pool_->take();
    if (!block) return false;
    blocks_.push_back(*block);
  }
  return true;
}

void BlockTable::clear() {
  for (const BlockId block : blocks_) pool_->release(block);
  blocks_.clear();
}

}  // namespace sparrow
