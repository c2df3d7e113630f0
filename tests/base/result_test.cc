// SPDX-License-Identifier: Apache-2.0
#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>

namespace sparrow {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return Error{Errc::kInvalidArgument, strf("x must be even, got {}", x)};
  return x / 2;
}

Result<int> quarter(int x) {
  return SPARROW_TRY(half(SPARROW_TRY(half(x))));
}

TEST(Result, TryHandsOnTheFirstError) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(6).error().message, "x must be even, got 3");
  EXPECT_EQ(quarter(7).error().message, "x must be even, got 7");
}

TEST(Result, CarriesMoveOnlyValues) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  const std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 7);
}

TEST(ResultDeathTest, TheValueOfAnErrorIsABug) {
  EXPECT_DEATH((void)half(3).value(), "check failed");
}

TEST(CheckDeathTest, PrintsBothSides) {
  EXPECT_DEATH(SPARROW_CHECK_EQ(2 + 2, 5), "2 \\+ 2 == 5: 4 against 5");
}

}  // namespace
}  // namespace sparrow
