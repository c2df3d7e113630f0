// SPDX-License-Identifier: Apache-2.0
// BlockTable: the physical block of each logical block of one sequence. One of the owners of its blocks, and
// gives them back to the pool, which must outlive it. Engine thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/math.h"
#include "kv/block_pool.h"

namespace sparrow {

inline constexpr int kBlockTokens = 128;  // one MSA block, one page of the cache

constexpr int64_t blocks_for_tokens(int64_t tokens) {
  return ceil_div(tokens, kBlockTokens);
}

// The content of one block to be copied into another, all lanes of it.
struct BlockCopy {
  BlockId from, to;
  bool operator==(const BlockCopy&) const = default;
};

class BlockTable {
 public:
  explicit BlockTable(BlockPool& pool) : pool_(&pool) {}
  BlockTable(BlockTable&& other) noexcept : pool_(other.pool_), blocks_(std::move(other.blocks_)) {}
  BlockTable& operator=(BlockTable&&) = delete;
  ~BlockTable() { clear(); }

  // Takes blocks until `tokens` tokens fit. False: the pool is full; what was taken stays.
  bool reserve(int64_t tokens);
  // Appends a block that is in use or cached, as one more owner.
  void append_shared(BlockId block);
  // Another table over the blocks of the first `tokens` tokens. Before either writes into one that is_shared:
  // copy_on_write.
  BlockTable fork(int64_t tokens) const;
  bool is_shared(int64_t logical_block) const { return pool_->num_owners(blocks_[logical_block]) > 1; }
  // Gives this table a block of its own in the place of a shared one, into which the shared one is to be
  // copied. nullopt: the pool is full.
  std::optional<BlockCopy> copy_on_write(int64_t logical_block);
  // Puts `block`, of the same content, in the place of a block.
  void replace(int64_t logical_block, BlockId block);
  void clear();
  // Its blocks come from another pool from now on; it has none.
  void set_pool(BlockPool& pool);

  std::span<const BlockId> blocks() const { return blocks_; }
  int64_t capacity_tokens() const { return static_cast<int64_t>(blocks_.size()) * kBlockTokens; }

  // Where a token's entries lie: physical block * kBlockTokens + offset inside it.
  int64_t slot(int64_t position) const {
    return int64_t{blocks_[position / kBlockTokens]} * kBlockTokens + position % kBlockTokens;
  }

 private:
  BlockPool* pool_;
  std::vector<BlockId> blocks_;
};

}  // namespace sparrow
