// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include <gtest/gtest.h>

#include <cstring>

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

TEST(KvCache, PagesOfAllLayersAreApart) {
  const KvCacheShape shape = small_shape();
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

TEST(KvCacheDeathTest, ADenseLayerHasNoIndexPages) {
  const KvCache cache = KvCache::create(small_shape()).value();
  EXPECT_DEATH(cache.index_pages(0), "layer_is_sparse");
}

}  // namespace
}  // namespace sparrow
