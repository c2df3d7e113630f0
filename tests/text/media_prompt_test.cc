// SPDX-License-Identifier: Apache-2.0
#include "text/media_prompt.h"

#include <gtest/gtest.h>

namespace sparrow {
namespace {

// "{...}" is markup, the rest is not.
PromptText prompt(std::string_view pattern) {
  PromptText result;
  size_t start = 0;
  for (const char c : pattern) {
    if (c == '{') start = result.text.size();
    if (c == '}') result.markup.push_back({start, result.text.size()});
    if (c != '{' && c != '}') result.text += c;
  }
  return result;
}

TEST(MediaPrompt, AMarkerBecomesTheTokensOfItsMedium) {
  const auto got = expand_media(
      prompt("{a]<]image[>[b} said {]<]video[>[]<]image[>[}"),
      std::vector<MediumText>{{.tokens = 2},
                              {.is_video = true, .tokens = 1, .patches = 2, .seconds = {"0.0", "1.5"}},
                              {.tokens = 1}});
  ASSERT_TRUE(got.ok());
  const PromptText want = prompt(
      "{a]<]start of image[>[]<]image[>[]<]image[>[]<]end of image[>[b} said "
      "]<]0.0 seconds[>[{]<]start of image[>[]<]video[>[]<]end of image[>[}"
      "]<]1.5 seconds[>[{]<]start of image[>[]<]video[>[]<]end of image[>["
      "]<]start of image[>[]<]image[>[]<]end of image[>[}");
  EXPECT_EQ(got->text, want.text);
  EXPECT_EQ(got->markup, want.markup);
}

TEST(MediaPrompt, WhatAMessageSaysIsNoMarker) {
  const PromptText said = prompt("{a}]<]image[>[{b}]<]ima{ge[>[}");
  const auto got = expand_media(said, {});
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->text, said.text);
  EXPECT_EQ(got->markup, said.markup);
}

TEST(MediaPrompt, MarkersAndMediaMustAgree) {
  const PromptText one = prompt("{]<]image[>[}");
  EXPECT_EQ(expand_media(one, {}).error().message, "the chat template has an image where nothing should be");
  EXPECT_EQ(expand_media(one, std::vector<MediumText>{{.is_video = true, .tokens = 1}}).error().message,
            "the chat template has an image where a video should be");
  EXPECT_EQ(expand_media(one, std::vector<MediumText>(2, {.tokens = 1})).error().message,
            "the chat template has a place for 1 of 2 images and videos");
}

}  // namespace
}  // namespace sparrow
