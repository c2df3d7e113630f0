// SPDX-License-Identifier: Apache-2.0
// BlockPool: who owns each physical block. A block is in use (one owner or several), cached (no owner, but
// its content is known and may be wanted again) or free; the three always add up to the whole pool. Host
// only, engine thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace sparrow {

using BlockId = int32_t;

class BlockPool {
 public:
  // The blocks are [first, first + num_blocks). Free ones are handed out in ascending order, or in one
  // shuffled by `order_seed`: nothing may depend on the order.
  explicit BlockPool(int num_blocks, std::optional<uint64_t> order_seed = std::nullopt, BlockId first = 0);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // A block with one owner: a free one, or else the cached one that was released longest ago, whose content
  // is forgotten. nullopt: every block is in use.
  std::optional<BlockId> take();
  // One more owner of a block that is in use or cached.
  void share(BlockId block);
  // One owner less. The last one leaves the block cached if its content is kept, and free otherwise.
  void release(BlockId block);

  // Keeps the content of a block in use after its last owner has gone.
  void keep(BlockId block);
  // Forgets all content: cached blocks become free.
  void keep_nothing();
  // Called with each kept block that take() hands out anew, before it does.
  void on_evict(std::function<void(BlockId)> forget) { forget_ = std::move(forget); }

  int num_owners(BlockId block) const { return blocks_[block - first_].owners; }
  bool is_kept(BlockId block) const { return blocks_[block - first_].kept; }

  BlockId first_block() const { return first_; }
  int num_blocks() const { return static_cast<int>(blocks_.size()); }
  int num_in_use() const { return num_in_use_; }
  int num_cached() const { return num_cached_; }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_available() const { return num_cached() + num_free(); }  // what take() can still hand out

 private:
  // Cached blocks form a list, the longest released first.
  struct Block {
    int32_t owners = 0;
    bool kept = false;
    BlockId previous = kNone, next = kNone;
  };
  static constexpr BlockId kNone = -1;

  void link(BlockId block);
  void unlink(BlockId block);
  void check_own(BlockId block) const;
  void check_in_use(BlockId block) const;
  Block& at(BlockId block) { return blocks_[block - first_]; }

  const BlockId first_;
  std::vector<Block> blocks_;  // [block - first_]
  std::vector<BlockId> free_;  // taken from the back
  BlockId oldest_ = kNone, newest_ = kNone;
  int num_in_use_ = 0, num_cached_ = 0;
  std::function<void(BlockId)> forget_;
};

}  // namespace sparrow
