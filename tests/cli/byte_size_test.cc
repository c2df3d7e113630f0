// SPDX-License-Identifier: Apache-2.0
#include "cli/args/byte_size.h"

#include <gtest/gtest.h>

namespace sparrow::cli {
namespace {

TEST(ByteSize, IsReadAsPeopleWriteIt) {
  EXPECT_EQ(parse_byte_size("1000", "--x").value(), 1000);
  EXPECT_EQ(parse_byte_size("4G", "--x").value(), int64_t{4} << 30);
  EXPECT_EQ(parse_byte_size("512MiB", "--x").value(), int64_t{512} << 20);
  EXPECT_EQ(parse_byte_size("1.5k", "--x").value(), 1536);
  EXPECT_EQ(parse_byte_size("2TB", "--x").value(), int64_t{2} << 40);
}

TEST(ByteSize, WhatIsNoSizeIsNamed) {
  for (const char* text : {"", "x", "-1", "0", "4X", "4GG", "4 G", "nan", "inf", "1e300", "0.1"}) {
    const auto size = parse_byte_size(text, "--x");
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_EQ(size.error().field, "--x");
  }
}

TEST(Count, ComesWithVllmsUnits) {
  EXPECT_EQ(parse_count("65536", "--x").value(), 65536);
  EXPECT_EQ(parse_count("64k", "--x").value(), 64'000);
  EXPECT_EQ(parse_count("64K", "--x").value(), 65'536);
  EXPECT_EQ(parse_count("25.6k", "--x").value(), 25'600);
  EXPECT_EQ(parse_count("1m", "--x").value(), 1'000'000);
  EXPECT_EQ(parse_count("1M", "--x").value(), 1'048'576);
  EXPECT_EQ(parse_count("0", "--x").value(), 0);
  for (const char* text : {"", "x", "-1", "4x", "4kk", "4 k", "nan", "inf", "1e300", "0.1", "1.5", "1.0005k"})
    EXPECT_FALSE(parse_count(text, "--x").ok()) << text;
}

}  // namespace
}  // namespace sparrow::cli
