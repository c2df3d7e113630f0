// SPDX-License-Identifier: Apache-2.0
// What stays of pictures that were decoded, and for whom.
#include "server/media/picture_cache.h"

#include <gtest/gtest.h>

namespace sparrow {
namespace {

Image picture(size_t bytes) {
  return {.width = 1, .height = 1, .rgb = std::vector<uint8_t>(bytes)};
}
Sha256Digest id(int number) {
  return {static_cast<uint8_t>(number), static_cast<uint8_t>(number >> 8)};
}

TEST(PictureCache, WhatWasNotUsedForLongestGoesFirst) {
  PictureCache cache(30);
  for (int i = 0; i < 3; ++i) cache.add(id(i), "a", picture(10));
  EXPECT_TRUE(cache.find(id(0)));
  cache.add(id(3), "a", picture(10));
  EXPECT_TRUE(cache.find(id(0)));
  EXPECT_FALSE(cache.find(id(1)));
  cache.add(id(4), "a", picture(31));
  EXPECT_FALSE(cache.find(id(4)));
}

TEST(PictureCache, AKeyTakesNoMoreThanItsPartFromOthers) {
  PictureCache cache(40);
  cache.add(id(0), "quiet", picture(10));
  cache.add(id(1), "quiet", picture(10));
  for (int i = 2; i < 300; ++i) cache.add(id(i), "loud", picture(5));
  EXPECT_TRUE(cache.find(id(0)) && cache.find(id(1)));
  EXPECT_TRUE(cache.find(id(299)) && cache.find(id(296)));
  EXPECT_FALSE(cache.find(id(295)));
  // More than the part of one of three: those of before lose what they have beyond it.
  cache.add(id(300), "third", picture(13));
  EXPECT_TRUE(cache.find(id(300)));
}

TEST(PictureCache, OnePictureIsAnotherForAnotherSalt) {
  const Sha256Digest file = id(7);
  EXPECT_NE(PictureCache::id_of("a", file, {}), PictureCache::id_of("b", file, {}));
  EXPECT_EQ(PictureCache::id_of("a", file, {}), PictureCache::id_of("a", file, {}));
}

}  // namespace
}  // namespace sparrow
