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
  const auto sparse = std::count(layer_is_sparse.begin(), layer_is_sparse.end(), 1);
  return kv_page_bytes() * num_layers() + index_page_bytes() * sparse;
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
    if (shape.layer_is_sparse[layer]) bytes += shape.index_page_bytes() * shape.num_blocks;
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
    const auto copy_page = [&](size_t offset, size_t bytes) {
      std::memcpy(memory_.get() + offset + copy.to * bytes, memory_.get() + offset + copy.from * bytes,
                  bytes);
    };
    for (int layer = 0; layer < shape_.num_layers(); ++layer) {
      copy_page(layout_.kv[layer], shape_.kv_page_bytes());
      if (shape_.layer_is_sparse[layer]) copy_page(layout_.index[layer], shape_.index_page_bytes());
    }
  }
}

void* KvCache::index_pages(int layer) const {
  SPARROW_CHECK(shape_.layer_is_sparse[layer]);
  return memory_.get() + layout_.index[layer];
}

}  // namespace sparrow
