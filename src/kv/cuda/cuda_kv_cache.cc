// SPDX-License-Identifier: Apache-2.0
#include "kv/cuda/cuda_kv_cache.h"

#include <algorithm>
#include <utility>

#include "device/cuda/check.h"
#include "kv/cuda/copy_blocks.h"

namespace sparrow {
namespace {

Status check_type(const char* what, DType dtype) {
  if (dtype == DType::kBF16 || dtype == DType::kF8E4M3) return Ok{};
  return Error{Errc::kUnsupported,
               strf("{} of the cache must be BF16 or F8_E4M3 on a GPU, got {}", what, name_of(dtype))};
}

// Whether a copy has to see, or must not disturb, what the copies of the launch do.
bool depends_on(const CopyBlocksParams& launch, const BlockCopy& copy) {
  const auto* const from_end = launch.from + launch.num_copies;
  const auto* const to_end = launch.to + launch.num_copies;
  return std::find(launch.to, to_end, copy.from) != to_end ||
         std::find(launch.to, to_end, copy.to) != to_end ||
         std::find(launch.from, from_end, copy.to) != from_end;
}

}  // namespace

Result<CudaKvCache> CudaKvCache::create(KvCacheShape shape, std::span<const float> kv_scales) {
  SPARROW_TRY(check_type("keys and values", shape.dtype));
  SPARROW_TRY(check_type("index keys", shape.index_dtype));
  CudaKvCache cache(std::move(shape));
  const KvCacheShape& of = cache.shape_;
  auto memory = DeviceBuffer::allocate(cache.layout_.bytes);
  if (!memory.ok())
    return Error{memory.error().code,
                 strf("a cache of {} blocks does not fit: {}", of.num_blocks, memory.error().message)};
  cache.memory_ = std::move(memory).value();
  if (cache.layout_.bytes > 0) SPARROW_CUDA(cudaMemset(cache.memory_.data(), 0, cache.layout_.bytes));

  std::vector<PageLane> lanes;
  for (int layer = 0; layer < of.num_layers(); ++layer) {
    lanes.push_back({static_cast<char*>(cache.kv_pages(layer)), static_cast<int64_t>(of.kv_page_bytes())});
    if (of.layer_is_sparse[layer])
      lanes.push_back(
          {static_cast<char*>(cache.index_pages(layer)), static_cast<int64_t>(of.index_page_bytes())});
  }
  Arena counted;
  lay_out_kv_tables(counted, of);
  cache.table_memory_ = SPARROW_TRY(DeviceBuffer::allocate(counted.used()));
  Arena arena(cache.table_memory_.data());
  cache.tables_ = lay_out_kv_tables(arena, of);
  SPARROW_CUDA(
      cudaMemcpy(cache.tables_.lanes, lanes.data(), lanes.size() * sizeof(PageLane), cudaMemcpyHostToDevice));
  if (of.dtype == DType::kF8E4M3) {
    const std::vector<float> ones(static_cast<size_t>(of.num_scales()), 1.0f);
    if (kv_scales.empty()) kv_scales = ones;
    SPARROW_CHECK_EQ(kv_scales.size(), ones.size());
    SPARROW_CUDA(
        cudaMemcpy(cache.tables_.scales, kv_scales.data(), kv_scales.size_bytes(), cudaMemcpyHostToDevice));
  }
  SPARROW_CUDA(cudaDeviceSynchronize());  // streams of the caller do not wait for this one
  return cache;
}

void CudaKvCache::copy_blocks(std::span<const BlockCopy> copies, cudaStream_t stream) {
  CopyBlocksParams launch = {
      .lanes = tables_.lanes,
      .num_lanes = shape_.num_lanes(),
      .max_page_bytes = static_cast<int64_t>(std::max(shape_.kv_page_bytes(), shape_.index_page_bytes()))};
  const auto flush = [&] {
    SPARROW_CUDA(launch_copy_blocks(launch, stream));
    launch.num_copies = 0;
  };
  for (const BlockCopy& copy : copies) {
    SPARROW_CHECK(copy.from >= 0 && copy.from < shape_.num_blocks && copy.to >= 0 &&
                  copy.to < shape_.num_blocks);
    if (copy.from == copy.to) continue;
    if (launch.num_copies == kMaxCopiesPerLaunch || depends_on(launch, copy)) flush();
    launch.from[launch.num_copies] = copy.from;
    launch.to[launch.num_copies++] = copy.to;
  }
  flush();
}

void* CudaKvCache::index_pages(int layer) const {
  SPARROW_CHECK(shape_.layer_is_sparse[layer]);
  return memory_.data() + layout_.index[layer];
}

const float* CudaKvCache::kv_scales(int layer) const {
  if (shape_.dtype != DType::kF8E4M3) return nullptr;
  return tables_.scales + ptrdiff_t{2} * layer * shape_.kv_heads;
}

}  // namespace sparrow
