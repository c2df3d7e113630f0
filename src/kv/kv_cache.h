// SPDX-License-Identifier: Apache-2.0
// KvCache: the pages of all layers. A block is K and V of every layer and index-K of every sparse layer under
// one id, so that no lane of it can be left behind. Engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/tensor.h"
#include "device/arena.h"
#include "kv/block_table.h"
#include "kv/page_lane.h"

namespace sparrow {

struct KvCacheShape {
  int num_blocks = 0;
  int kv_heads = 0;
  int head_dim = 0;
  DType dtype = DType::kBF16;
  DType index_dtype = dtype;
  std::vector<uint8_t> layer_is_sparse;  // [layers] sparse layers have index-K pages
  // Ranks that share K and V of a block's heads also share index-K, by block: it is on rank b % index_ranks
  // of them, as page b / index_ranks.
  int index_rank = 0, index_ranks = 1;

  int num_layers() const { return static_cast<int>(layer_is_sparse.size()); }
  int num_lanes() const;            // K and V of each layer, index-K of each sparse one
  int64_t num_scales() const;       // of an F8_E4M3 cache, otherwise 0
  size_t kv_page_bytes() const;     // K and V of one block on one layer
  size_t index_page_bytes() const;  // index-K of one block on one sparse layer
  size_t block_bytes() const;       // a whole block, all layers; of index-K a rank's share of all blocks'
  int num_index_pages() const { return ceil_div(num_blocks, index_ranks); }
  size_t index_block_bytes() const;  // index-K of one block, all sparse layers
  bool has_index_of(BlockId block) const { return block % index_ranks == index_rank; }
};

// Where pages lie: bytes from the start of the cache's memory.
struct KvCacheLayout {
  // [layers] the first page of each. `index` is meaningful on sparse layers only.
  std::vector<size_t> kv, index;
  size_t bytes = 0;

  explicit KvCacheLayout(const KvCacheShape& shape);
};

// What a cache on a GPU keeps there beside its pages.
struct KvTables {
  PageLane* lanes = nullptr;  // [num_lanes()]
  float* scales = nullptr;    // [layers, kv_heads, 2 (K, V)] where pages are F8_E4M3, or none
};
KvTables lay_out_kv_tables(Arena& arena, const KvCacheShape& shape);

class KvCache {
 public:
  // Fails when the address space for the pages cannot be had. Memory is used only as blocks are written.
  static Result<KvCache> create(KvCacheShape shape);

  const KvCacheShape& shape() const { return shape_; }

  // Copies whole blocks, all lanes of them, one after the other in the order given. Index-K is left out
  // unless it is this rank's in both blocks.
  void copy_blocks(std::span<const BlockCopy> copies);
  // Index-K of a block that this rank has, index_block_bytes(), for what goes to another rank.
  void read_index(BlockId block, std::byte* to) const;
  void write_index(BlockId block, const std::byte* from);

  // [block][kv_head][K, V][token][dim]
  void* kv_pages(int layer) const { return memory_.get() + layout_.kv[layer]; }
  // [index page][token][dim]; sparse layers only.
  void* index_pages(int layer) const;

 private:
  std::byte* index_page(int layer, BlockId block) const;

  struct Unmap {
    size_t bytes;
    void operator()(std::byte* memory) const;
  };

  explicit KvCache(KvCacheShape shape) : shape_(std::move(shape)), layout_(shape_) {}

  KvCacheShape shape_;
  KvCacheLayout layout_;
  std::unique_ptr<std::byte, Unmap> memory_;
};

}  // namespace sparrow
