// SPDX-License-Identifier: Apache-2.0
// CudaKvCache: the pages of all layers in GPU memory, in the layout of KvCache. Engine thread only.
#pragma once

#include <cuda_runtime_api.h>

#include <span>
#include <vector>

#include "base/result.h"
#include "device/cuda/memory.h"
#include "kv/block_table.h"
#include "kv/kv_cache.h"

namespace sparrow {

class CudaKvCache {
 public:
  // All pages zero. `kv_scales` [layers, kv_heads, 2 (K, V)]: e4m3 pages hold x / scale; empty: 1 throughout.
  // Fails when the pages do not fit, or have a type other than BF16 and F8_E4M3.
  static Result<CudaKvCache> create(KvCacheShape shape, std::span<const float> kv_scales = {});

  const KvCacheShape& shape() const { return shape_; }
  size_t bytes() const { return memory_.bytes(); }  // of the pages
  size_t table_bytes() const { return table_memory_.bytes(); }

  // Copies whole blocks, all lanes of them, with the result of one after the other in the order given.
  void copy_blocks(std::span<const BlockCopy> copies, cudaStream_t stream);

  // [block][kv_head][K, V][token][dim]
  void* kv_pages(int layer) const { return memory_.data() + layout_.kv[layer]; }
  // [block][token][dim]; sparse layers only.
  void* index_pages(int layer) const;
  // [kv_heads, 2 (K, V)] on the device; nullptr where pages are not F8_E4M3.
  const float* kv_scales(int layer) const;

 private:
  explicit CudaKvCache(KvCacheShape shape) : shape_(std::move(shape)), layout_(shape_) {}

  KvCacheShape shape_;
  KvCacheLayout layout_;
  DeviceBuffer memory_;
  DeviceBuffer table_memory_;
  KvTables tables_;
};

}  // namespace sparrow
