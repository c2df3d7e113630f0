// SPDX-License-Identifier: Apache-2.0
// The cache's pages in GPU memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "device/cuda/check.h"
#include "device/cuda/stream.h"
#include "kv/cuda/cuda_kv_cache.h"

namespace sparrow {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

KvCacheShape shape_of(int num_blocks, DType dtype, DType index_dtype) {
  return {.num_blocks = num_blocks,
          .kv_heads = 2,
          .head_dim = 128,
          .dtype = dtype,
          .index_dtype = index_dtype,
          .layer_is_sparse = {0, 1, 1}};
}

std::vector<std::byte> read_back(const void* device, size_t bytes) {
  std::vector<std::byte> host(bytes);
  SPARROW_CUDA(cudaMemcpy(host.data(), device, bytes, cudaMemcpyDeviceToHost));
  return host;
}

void fill_random(void* device, void* host, size_t bytes, std::mt19937& random) {
  std::generate_n(static_cast<uint8_t*>(host), bytes, [&] { return static_cast<uint8_t>(random()); });
  SPARROW_CUDA(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
}

// The same random pages in a cache on the GPU and in one on the host.
void fill_both(const CudaKvCache& device, const KvCache& host) {
  std::mt19937 random(1);
  const KvCacheShape& shape = device.shape();
  for (int layer = 0; layer < shape.num_layers(); ++layer) {
    fill_random(device.kv_pages(layer), host.kv_pages(layer), shape.kv_page_bytes() * shape.num_blocks,
                random);
    if (shape.layer_is_sparse[layer])
      fill_random(device.index_pages(layer), host.index_pages(layer),
                  shape.index_page_bytes() * shape.num_blocks, random);
  }
}

void expect_same_pages(const CudaKvCache& device, const KvCache& host) {
  const KvCacheShape& shape = device.shape();
  for (int layer = 0; layer < shape.num_layers(); ++layer) {
    const size_t kv = shape.kv_page_bytes() * shape.num_blocks,
                 index = shape.index_page_bytes() * shape.num_blocks;
    EXPECT_EQ(std::memcmp(read_back(device.kv_pages(layer), kv).data(), host.kv_pages(layer), kv), 0)
        << layer;
    if (!shape.layer_is_sparse[layer]) continue;
    EXPECT_EQ(std::memcmp(read_back(device.index_pages(layer), index).data(), host.index_pages(layer), index),
              0)
        << layer;
  }
}

// The copies as the host's cache makes them, one after the other, are the oracle.
void expect_copies(const KvCacheShape& shape, const std::vector<BlockCopy>& copies) {
  CudaKvCache device = CudaKvCache::create(shape).value();
  KvCache host = KvCache::create(shape).value();
  fill_both(device, host);
  expect_same_pages(device, host);
  const Stream stream;
  device.copy_blocks(copies, stream.get());
  stream.synchronize();
  host.copy_blocks(copies);
  expect_same_pages(device, host);
}

TEST(CudaKvCache, StartsWithZeros) {
  const CudaKvCache cache = CudaKvCache::create(shape_of(3, DType::kBF16, DType::kBF16)).value();
  EXPECT_EQ(cache.bytes(), cache.shape().block_bytes() * 3);
  EXPECT_THAT(read_back(cache.kv_pages(0), cache.bytes()), Each(std::byte{0}));
}

TEST(CudaKvCache, CopiesBlocksOfAllLayers) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3})
    for (const DType index : {DType::kBF16, DType::kF8E4M3})
      expect_copies(shape_of(5, dtype, index), {{0, 3}, {1, 4}});
}

TEST(CudaKvCache, ChainsOfCopiesAreMadeInTheirOrder) {
  const KvCacheShape shape = shape_of(5, DType::kBF16, DType::kF8E4M3);
  expect_copies(shape, {{0, 1}, {1, 2}, {2, 3}});  // 0 gets everywhere
  expect_copies(shape, {{1, 2}, {0, 1}});          // the old 1 gets to 2
  expect_copies(shape, {{0, 2}, {1, 2}});          // the second wins
  expect_copies(shape, {{2, 2}, {0, 4}, {4, 0}});
  expect_copies(shape, {});
}

TEST(CudaKvCache, MoreCopiesThanOneLaunchTakes) {
  std::vector<BlockCopy> copies;
  for (int i = 0; i < 150; ++i) copies.push_back({i % 7, 150 + i});
  KvCacheShape shape = shape_of(300, DType::kF8E4M3, DType::kF8E4M3);
  shape.kv_heads = 1;
  expect_copies(shape, copies);
}

TEST(CudaKvCache, ScalesAreThereForFp8PagesOnly) {
  EXPECT_EQ(CudaKvCache::create(shape_of(1, DType::kBF16, DType::kBF16))->kv_scales(0), nullptr);
  const CudaKvCache plain = CudaKvCache::create(shape_of(1, DType::kF8E4M3, DType::kBF16)).value();
  std::vector<float> scales(4);
  SPARROW_CUDA(cudaMemcpy(scales.data(), plain.kv_scales(2), 16, cudaMemcpyDeviceToHost));
  EXPECT_THAT(scales, Each(1.0f));
  const std::vector<float> given = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const CudaKvCache scaled = CudaKvCache::create(shape_of(1, DType::kF8E4M3, DType::kBF16), given).value();
  SPARROW_CUDA(cudaMemcpy(scales.data(), scaled.kv_scales(1), 16, cudaMemcpyDeviceToHost));
  EXPECT_THAT(scales, ElementsAre(5, 6, 7, 8));
}

TEST(CudaKvCache, ACacheThatDoesNotFitIsAnError) {
  const auto cache = CudaKvCache::create(shape_of(100'000'000, DType::kBF16, DType::kBF16));
  ASSERT_FALSE(cache.ok());
  EXPECT_THAT(cache.error().message, HasSubstr("a cache of 100000000 blocks does not fit"));
  EXPECT_THAT(CudaKvCache::create(shape_of(1, DType::kF32, DType::kF32)).error().message,
              HasSubstr("must be BF16 or F8_E4M3 on a GPU, got F32"));
}

}  // namespace
}  // namespace sparrow
