// SPDX-License-Identifier: Apache-2.0
// BlockPool: which physical blocks are free. Host only, engine thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace sparrow {

using BlockId = int32_t;

class BlockPool {
 public:
  // Blocks are handed out in ascending order, or in one shuffled by `order_seed`: nothing may depend on the
  // order.
  explicit BlockPool(int num_blocks, std::optional<uint64_t> order_seed = std::nullopt);

  std::optional<BlockId> take();  // nullopt: the pool is full
  void release(BlockId block);

  int num_blocks() const { return static_cast<int>(in_use_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }

 private:
  std::vector<BlockId> free_;    // taken from the back
  std::vector<uint8_t> in_use_;  // [block]
};

}  // namespace sparrow
