// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>
#include <utility>

namespace sparrow {
namespace {

KvCacheShape small_shape() {
  return {
      .num_blocks = 3, .kv_heads = 2, .head_dim = 128, .dtype = DType::kBF16, .layer_is_sparse = {0, 1, 1}};
}

TEST(KvCache, ABlockIsKVOfEveryLayerAndIndexKeysOfSparseOnes) {
  const KvCacheShape shape = small_shape();
  EXPECT_EQ(shape.kv_page_bytes(), 2u * 2 * 128 * 128 * 2);
  EXPECT_EQ(shape.index_page_bytes(), 128u * 128 * 2);
  EXPECT_EQ(shape.block_bytes(), 3 * shape.kv_page_bytes() + 2 * shape.index_page_bytes());
}

// The released model: 137,472 bytes for each token with bf16 caches.
TEST(KvCache, MatchesTheReleasedModelsBytesPerToken) {
  KvCacheShape shape{
      .num_blocks = 1, .kv_heads = 4, .head_dim = 128, .dtype = DType::kBF16, .layer_is_sparse = {}};
  for (int layer = 0; layer < 60; ++layer) shape.layer_is_sparse.push_back(layer >= 3);
  EXPECT_EQ(shape.block_bytes() / kBlockTokens, 137472u);
}

// Of several ranks each has index keys of every so-manieth block.
TEST(KvCache, RanksOfTheReleasedModelShareIndexKeys) {
  const struct {
    int ranks, kv_heads;
    size_t token_bytes;
  } kRows[] = {{2, 2, 68'736}, {4, 1, 34'368}, {8, 1, 32'544}};
  for (const auto& row : kRows) {
    KvCacheShape shape{.num_blocks = 1000,
                       .kv_heads = row.kv_heads,
                       .head_dim = 128,
                       .dtype = DType::kBF16,
                       .layer_is_sparse = {},
                       .index_ranks = row.ranks};
    for (int layer = 0; layer < 60; ++layer) shape.layer_is_sparse.push_back(layer >= 3);
    EXPECT_EQ(shape.block_bytes() / kBlockTokens, row.token_bytes);
    EXPECT_EQ(KvCacheLayout(shape).bytes, shape.block_bytes() * 1000);
    shape.num_blocks = 1001;  // a page too many on some ranks, so that all are laid out alike
    EXPECT_EQ(KvCacheLayout(shape).bytes,
              shape.kv_page_bytes() * 60 * 1001 + shape.index_block_bytes() * (1000 / row.ranks + 1));
  }
}

TEST(KvCache, IndexKeysOfABlockCanBeReadAndWritten) {
  KvCacheShape shape = small_shape();
  shape.num_blocks = 8;
  shape.index_rank = 1, shape.index_ranks = 3;
  KvCache cache = KvCache::create(shape).value();
  std::vector<std::byte> four(shape.index_block_bytes()), seven(four), read(four);
  for (size_t i = 0; i < four.size(); ++i)
    four[i] = static_cast<std::byte>(i % 251), seven[i] = static_cast<std::byte>(i % 241);
  cache.write_index(4, four.data());
  cache.write_index(7, seven.data());
  cache.read_index(4, read.data());
  EXPECT_EQ(read, four);
  // Index keys follow a copy only where both blocks have theirs here.
  const std::array<BlockCopy, 2> copies = {{{4, 5}, {7, 1}}};
  cache.copy_blocks(copies);
  cache.read_index(1, read.data());
  EXPECT_EQ(read, seven);
  cache.read_index(4, read.data());
  EXPECT_EQ(read, four);
}

TEST(KvCache, EachLaneHasTheSizeOfItsType) {
  KvCacheShape shape = small_shape();
  shape.index_dtype = DType::kF8E4M3;
  EXPECT_EQ(shape.kv_page_bytes(), 2u * 2 * 128 * 128 * 2);
  EXPECT_EQ(shape.index_page_bytes(), 128u * 128);
  EXPECT_EQ(shape.block_bytes(), 3 * shape.kv_page_bytes() + 2 * shape.index_page_bytes());
  EXPECT_EQ(shape.num_scales(), 0) << "index keys have none";
  shape.dtype = DType::kF8E4M3;
  EXPECT_EQ(shape.kv_page_bytes(), 2u * 2 * 128 * 128);
  EXPECT_EQ(shape.block_bytes() * 2, small_shape().block_bytes());
}

// A cache whose lanes have types of their own.
class KvCacheLanes : public testing::TestWithParam<std::pair<DType, DType>> {
 protected:
  static KvCacheShape shape_of_lanes() {
    KvCacheShape shape = small_shape();
    std::tie(shape.dtype, shape.index_dtype) = GetParam();
    return shape;
  }
};
INSTANTIATE_TEST_SUITE_P(Types, KvCacheLanes,
                         testing::Values(std::pair{DType::kBF16, DType::kBF16},
                                         std::pair{DType::kF8E4M3, DType::kBF16},
                                         std::pair{DType::kBF16, DType::kF8E4M3},
                                         std::pair{DType::kF8E4M3, DType::kF8E4M3}));

TEST_P(KvCacheLanes, PagesOfAllLayersAreApart) {
  const KvCacheShape shape = shape_of_lanes();
  const KvCache cache = KvCache::create(shape).value();
  const size_t kv = shape.kv_page_bytes() * 3, index = shape.index_page_bytes() * 3;
  for (int layer = 0; layer < 3; ++layer) {
    std::memset(cache.kv_pages(layer), layer + 1, kv);
    if (layer > 0) std::memset(cache.index_pages(layer), layer + 11, index);
  }
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(static_cast<char*>(cache.kv_pages(layer))[0], layer + 1);
    EXPECT_EQ(static_cast<char*>(cache.kv_pages(layer))[kv - 1], layer + 1);
    if (layer == 0) continue;
    EXPECT_EQ(static_cast<char*>(cache.index_pages(layer))[0], layer + 11);
    EXPECT_EQ(static_cast<char*>(cache.index_pages(layer))[index - 1], layer + 11);
  }
}

TEST_P(KvCacheLanes, ACopyOfABlockLeavesNoLaneBehind) {
  const KvCacheShape shape = shape_of_lanes();
  KvCache cache = KvCache::create(shape).value();
  const auto page = [&](int layer, bool index, int block) {
    const size_t bytes = index ? shape.index_page_bytes() : shape.kv_page_bytes();
    void* pages = index ? cache.index_pages(layer) : cache.kv_pages(layer);
    return std::span(static_cast<uint8_t*>(pages) + block * bytes, bytes);
  };
  const auto each_lane = [&](auto&& body) {
    for (int layer = 0; layer < shape.num_layers(); ++layer)
      for (int index = 0; index <= shape.layer_is_sparse[layer]; ++index) body(layer, index != 0);
  };
  const auto value = [](int layer, bool index, int block) {
    return static_cast<uint8_t>(1 + 100 * index + 10 * layer + block);
  };
  each_lane([&](int layer, bool index) {
    for (int block = 0; block < 3; ++block)
      std::ranges::fill(page(layer, index, block), value(layer, index, block));
  });
  // In order: block 0 receives what block 1 held before.
  cache.copy_blocks(std::vector<BlockCopy>{{1, 0}, {2, 1}, {2, 2}});
  each_lane([&](int layer, bool index) {
    for (const auto& [block, from] : {std::pair{0, 1}, {1, 2}, {2, 2}})
      EXPECT_EQ(std::ranges::count(page(layer, index, block), value(layer, index, from)),
                static_cast<int64_t>(page(layer, index, block).size()))
          << "layer " << layer << " index " << index << " block " << block;
  });
}

TEST(KvCacheDeathTest, ABlockOutsideTheCacheIsABug) {
  KvCache cache = KvCache::create(small_shape()).value();
  EXPECT_DEATH(cache.copy_blocks(std::vector<BlockCopy>{{0, 3}}), "num_blocks");
  EXPECT_DEATH(cache.copy_blocks(std::vector<BlockCopy>{{-1, 0}}), "num_blocks");
}

TEST(KvCacheDeathTest, ADenseLayerHasNoIndexPages) {
  const KvCache cache = KvCache::create(small_shape()).value();
  EXPECT_DEATH(cache.index_pages(0), "layer_is_sparse");
}

}  // namespace
}  // namespace sparrow
