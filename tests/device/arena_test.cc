// SPDX-License-Identifier: Apache-2.0
// Arena: what is counted is what is handed out.
#include "device/arena.h"

#include <gtest/gtest.h>

namespace sparrow {
namespace {

struct Laid {
  float* first;
  uint8_t* second;
  int64_t* third;
};

Laid lay_out(Arena& arena) {
  Laid at{};
  arena.begin("numbers");
  at.first = arena.take<float>(65);
  at.second = arena.take<uint8_t>(0);
  arena.begin("rest");
  at.third = arena.take<int64_t>(1);
  return at;
}

TEST(Arena, CountsWithoutMemoryWhatItHandsOutWithIt) {
  Arena counted;
  const Laid nowhere = lay_out(counted);
  EXPECT_EQ(nowhere.first, nullptr);
  EXPECT_EQ(nowhere.third, nullptr);
  EXPECT_EQ(counted.used(), 512u + 256u);

  alignas(Arena::kAlignment) std::byte memory[768];
  Arena arena(memory);
  const Laid at = lay_out(arena);
  EXPECT_EQ(arena.used(), counted.used());
  EXPECT_EQ(static_cast<void*>(at.first), memory);
  EXPECT_EQ(static_cast<void*>(at.third), memory + 512);
}

TEST(Arena, PartsAddUpToTheWhole) {
  Arena arena;
  lay_out(arena);
  ASSERT_EQ(arena.parts().size(), 2u);
  EXPECT_EQ(arena.parts()[0].name, "numbers");
  EXPECT_EQ(arena.parts()[0].bytes, 512u);
  EXPECT_EQ(arena.parts()[0].bytes + arena.parts()[1].bytes, arena.used());
}

}  // namespace
}  // namespace sparrow
