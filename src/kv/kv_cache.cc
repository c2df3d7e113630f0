// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

namespace sparrow {

size_t KvCacheShape::kv_page_bytes() const {
  return size_t{2} * kv_heads * kBlockTokens * head_dim * size_of(dtype);
}

size_t KvCacheShape::index_page_bytes() const {
  return size_t{kBlockTokens} * head_dim * size_of(index_dtype);
}

size_t KvCacheShape::block_bytes() const {
  return kv_page_bytes() * num_layers() + index_block_bytes() / index_ranks;
}

size_t KvCacheShape::index_block_bytes() const {
  return index_page_bytes() * (num_lanes() - num_layers());
}

int KvCacheShape::num_lanes() const {
  return num_layers() +
         static_cast<int>(std::count_if(layer_is_sparse.begin(), layer_is_sparse.end(), std::identity()));
}

int64_t KvCacheShape::num_scales() const {
  return dtype == DType::kF8E4M3 ? int64_t{2} * num_layers() * kv_heads : 0;
}

KvTables lay_out_kv_tables(Arena& arena, const KvCacheShape& shape) {
  return {.lanes = arena.take<PageLane>(shape.num_lanes()), .scales = arena.take<float>(shape.num_scales())};
}

KvCacheLayout::KvCacheLayout(const KvCacheShape& shape) {
  for (int layer = 0; layer < shape.num_layers(); ++layer) {
    kv.push_back(bytes);
    bytes += shape.kv_page_bytes() * shape.num_blocks;
    index.push_back(bytes);
    if (shape.layer_is_sparse[layer]) bytes += shape.index_page_bytes() * shape.num_index_pages();
  }
}

Result<KvCache> KvCache::create(KvCacheShape shape) {
  KvCache cache(std::move(shape));
  const size_t bytes = std::max<size_t>(cache.layout_.bytes, 1);
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return Error{Errc::kIo, strf("no address space for a cache of {} blocks ({} bytes)",
                                 cache.shape_.num_blocks, bytes)};
  madvise(memory, bytes, MADV_HUGEPAGE);
  cache.memory_ = {static_cast<std::byte*>(memory), Unmap{bytes}};
  return cache;
}

void KvCache::Unmap::operator()(std::byte* memory) const {
  munmap(memory, bytes);
}

void KvCache::copy_blocks(std::span<const BlockCopy> copies) {
  for (const BlockCopy& copy : copies) {
    SPARROW_CHECK(copy.from >= 0 && copy.from < shape_.num_blocks && copy.to >= 0 &&
                  copy.to < shape_.num_blocks);
    if (copy.from == copy.to) continue;
    const bool has_index = shape_.has_index_of(copy.from) && shape_.has_index_of(copy.to);
    const size_t bytes = shape_.kv_page_bytes();
    for (int layer = 0; layer < shape_.num_layers(); ++layer) {
      std::byte* const pages = memory_.get() + layout_.kv[layer];
      std::memcpy(pages + copy.to * bytes, pages + copy.from * bytes, bytes);
      if (has_index && shape_.layer_is_sparse[layer])
        std::memcpy(index_page(layer, copy.to), index_page(layer, copy.from), shape_.index_page_bytes());
    }
  }
}

std::byte* KvCache::index_page(int layer, BlockId block) const {
  SPARROW_CHECK(shape_.has_index_of(block));
  return memory_.get() + layout_.index[layer] + block / shape_.index_ranks * shape_.index_page_bytes();
}

void KvCache::read_index(BlockId block, std::byte* to) const {
  for (int layer = 0; layer < shape_.num_layers(); ++layer)
    if (shape_.layer_is_sparse[layer]) {
      std::memcpy(to, index_page(layer, block), shape_.index_page_bytes());
      to += shape_.index_page_bytes();
    }
}

void KvCache::write_index(BlockId block, const std::byte* from) {
  for (int layer = 0; layer < shape_.num_layers(); ++layer)
    if (shape_.layer_is_sparse[layer]) {
      std::memcpy(index_page(layer, block), from, shape_.index_page_bytes());
      from += shape_.index_page_bytes();
    }
}

void* KvCache::index_pages(int layer) const {
  SPARROW_CHECK(shape_.layer_is_sparse[layer]);
  return memory_.get() + layout_.index[layer];
}

}  // namespace sparrow
