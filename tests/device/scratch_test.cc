// SPDX-License-Identifier: Apache-2.0
#include "device/scratch.h"

#include <gtest/gtest.h>

#include <cstring>

namespace sparrow {
namespace {

TEST(Scratch, MemoryIsAlignedAndDistinctInsideAScope) {
  Scratch scratch;
  Scratch::Scope scope(scratch);
  char* a = scope.take<char>(1);
  char* b = scope.take<char>(100);
  float* large = scope.take<float>(1 << 20);  // more than one chunk
  for (const void* p : {static_cast<void*>(a), static_cast<void*>(b), static_cast<void*>(large)})
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0u);
  std::memset(a, 1, 1);
  std::memset(b, 2, 100);
  std::memset(large, 3, sizeof(float) << 20);
  EXPECT_EQ(a[0], 1);
  EXPECT_EQ(b[99], 2);
}

TEST(Scratch, ARepeatedWorkloadStopsAllocating) {
  Scratch scratch;
  const auto workload = [&] {
    Scratch::Scope outer(scratch);
    outer.take<float>(100000);
    for (int i = 0; i < 3; ++i) {
      Scratch::Scope inner(scratch);
      inner.take<float>(700000);
      inner.take<float>(300000);
    }
  };
  workload();
  const size_t warm = scratch.capacity_bytes();
  for (int i = 0; i < 10; ++i) workload();
  EXPECT_EQ(scratch.capacity_bytes(), warm);
}

// Pieces of the sizes that were asked for first would leave gaps: a third more than was ever in use.
TEST(Scratch, HoldsNoMoreThanWasEverInUse) {
  constexpr int64_t kMiB = 1 << 20;
  Scratch scratch;
  for (const int64_t first : {3, 5, 2})
    for (const int64_t second : {4, 1, 6}) {
      Scratch::Scope scope(scratch);
      scope.take<char>(first * kMiB);
      scope.take<char>(second * kMiB);
    }
  EXPECT_EQ(scratch.capacity_bytes(), 11 * kMiB);
}

TEST(Scratch, AnEndedScopeGivesItsMemoryToTheNext) {
  Scratch scratch;
  Scratch::Scope outer(scratch);
  outer.take<int>(10);
  void* first;
  {
    Scratch::Scope inner(scratch);
    first = inner.take<int>(10);
  }
  Scratch::Scope again(scratch);
  EXPECT_EQ(again.take<int>(10), first);
}

}  // namespace
}  // namespace sparrow
