// SPDX-License-Identifier: Apache-2.0
// BlockTable: the physical block of each logical block of one sequence. Owns its blocks and gives them back
// to the pool, which must outlive it. Engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/block_pool.h"

namespace sparrow {

inline constexpr int kBlockTokens = 128;  // one MSA block, one page of the cache

constexpr int64_t blocks_for_tokens(int64_t tokens) {
  return (tokens + kBlockTokens - 1) / kBlockTokens;
}

class BlockTable {
 public:
  explicit BlockTable(BlockPool& pool) : pool_(&pool) {}
  BlockTable(BlockTable&& other) noexcept : pool_(other.pool_), blocks_(std::move(other.blocks_)) {}
  BlockTable& operator=(BlockTable&&) = delete;
  ~BlockTable() { clear(); }

  // Takes blocks until `tokens` tokens fit. False: the pool is full; what was taken stays.
  bool reserve(int64_t tokens);
  void clear();

  std::span<const BlockId> blocks() const { return blocks_; }

  // Where a token's entries lie: physical block * kBlockTokens + offset inside it.
  int64_t slot(int64_t position) const {
    return int64_t{blocks_[position / kBlockTokens]} * kBlockTokens + position % kBlockTokens;
  }

 private:
  BlockPool* pool_;
  std::vector<BlockId> blocks_;
};

}  // namespace sparrow
