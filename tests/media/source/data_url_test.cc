// SPDX-License-Identifier: Apache-2.0
#include "media/source/data_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sparrow {
namespace {

using testing::ElementsAre;

constexpr size_t kNoLimit = size_t{1} << 30;

TEST(DataUrl, HasATypeAndBytes) {
  for (const char* url : {"data:image/png;base64,Zm9v", "DATA:Image/PNG;BASE64,Zm9v",
                          "data:image/png;charset=utf-8;name=\"a\";base64,Zm9v"}) {
    const auto read = decode_data_url(url, kNoLimit);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read->media_type, "image/png");
    EXPECT_THAT(read->bytes, ElementsAre(std::byte{'f'}, std::byte{'o'}, std::byte{'o'}));
  }
}

TEST(DataUrl, RefusesWhatItCannotRead) {
  for (const char* url :
       {"", "data", "data:", "http://x/", "data:,Zm9v", "data:;base64,Zm9v", "data:image/png,Zm9v",
        "data:image/png;base64", "data:image;base64,Zm9v", "data:/png;base64,Zm9v", "data:image/;base64,Zm9v",
        "data:image/png/x;base64,Zm9v", "data:ima ge/png;base64,Zm9v", "data:image/p\x80ng;base64,Zm9v",
        "data:image/png;base64;x=y,Zm9v", "data:image/png;base64,Zm9", "data:image/png;base64,Zm9v\n",
        " data:image/png;base64,Zm9v"}) {
    const auto read = decode_data_url(url, kNoLimit);
    ASSERT_FALSE(read.ok()) << url;
    EXPECT_EQ(read.error().code, Errc::kInvalidArgument);
  }
  const auto endless = decode_data_url("data:" + std::string(1 << 20, 'x'), kNoLimit);
  ASSERT_FALSE(endless.ok());
  EXPECT_LE(endless.error().message.size(), 200u);
  EXPECT_FALSE(decode_data_url("data:image/png;base64,Zm9v", 2).ok());
}

}  // namespace
}  // namespace sparrow
