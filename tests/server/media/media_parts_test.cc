// SPDX-License-Identifier: Apache-2.0
#include "server/media/media_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/strf.h"

namespace sparrow {
namespace {

using testing::HasSubstr;

Result<std::vector<MediaSource>> read(std::string_view part, const MediaSettings& settings = {}) {
  const JsonDocument document =
      JsonDocument::parse(strf(R"([{{"role":"user","content":[{}]}}])", part), "text").value();
  return read_media_parts(document.root("messages"), std::nullopt, &settings, "");
}

std::string refusal(std::string_view part) {
  const auto made = read(part);
  return made.ok() ? "it was taken" : made.error().message;
}

TEST(MediaParts, FramesHaveTheirTimesInAList) {
  const auto video = [](std::string_view more) {
    return strf(R"({{"type":"video","video":["a","b"],{}}})", more);
  };
  constexpr const char* kPath = "messages[0].content[0].frames_indices must be a list, got ";
  EXPECT_THAT(refusal(video(R"("fps":2,"frames_indices":{"0":0,"1":1})")), HasSubstr(kPath));
  EXPECT_THAT(refusal(video(R"("fps":2,"frames_indices":"ab")")), HasSubstr(kPath));
  EXPECT_THAT(refusal(video(R"("frames_indices":7)")), HasSubstr(kPath));
  EXPECT_THAT(refusal(video(R"("frames_indices":[0,1])")), HasSubstr("needs fps beside it"));
  EXPECT_THAT(refusal(video(R"("fps":2,"frames_indices":[1,0])")), HasSubstr("must ascend"));
  EXPECT_THAT(refusal(video(R"("fps":2000000)")),
              HasSubstr("fps must be from 0.000001 to 1000000, got 2000000"));
  // Seconds with 300 digits, or infinitely many, would be part of the prompt.
  EXPECT_THAT(refusal(video(R"("fps":1e-300)")), HasSubstr("fps must be from 0.000001"));
  EXPECT_THAT(refusal(video(R"("total_num_frames":"many")")), HasSubstr("total_num_frames must be"));
  EXPECT_EQ(read(video(R"("fps":2,"frames_indices":[3,9])")).value()[0].frame_indices,
            (std::vector<int64_t>{3, 9}));
}

// Also where frames come as a list, and nothing asks how many of them to take.
TEST(MediaParts, ARateOfAllVideosIsOneThatAVideoCanHave) {
  const MediaSettings settings;
  const auto error = [&](std::string_view rate) {
    const JsonDocument messages =
        JsonDocument::parse(R"([{"role":"user","content":[{"type":"video","video":["a","b"]}]}])", "text")
            .value();
    const JsonDocument kwargs = JsonDocument::parse(strf(R"({{"fps":{}}})", rate), "text").value();
    const auto made =
        read_media_parts(messages.root("messages"), kwargs.root("mm_processor_kwargs"), &settings, "");
    return made.ok() ? "" : made.error().message;
  };
  EXPECT_EQ(error("2"), "");
  for (const char* rate : {"0", "-1", "1e300"})
    EXPECT_THAT(error(rate), HasSubstr("mm_processor_kwargs.fps")) << rate;
}

// The prompt has their places in that order.
TEST(MediaParts, OfResultsComeInTheOrderOfTheCalls) {
  const auto result = [](std::string_view id) {
    return strf(
        R"({{"role":"tool","tool_call_id":"{}","content":[{{"type":"image_url","image_url":"{}"}}]}})", id,
        id);
  };
  const JsonDocument document =
      JsonDocument::parse(strf(R"([{{"role":"assistant","tool_calls":[{{"id":"a"}},{{"id":"b"}}]}},{},{}])",
                               result("b"), result("a")),
                          "text")
          .value();
  const MediaSettings settings;
  const auto made = read_media_parts(document.root("messages"), std::nullopt, &settings, "");
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(made.value()[0].urls[0], "a");
  EXPECT_THAT(made.value()[1].fields[0], testing::StartsWith("messages[1].content[0]"));
}

// Asking for less is no error where a server allows less still.
TEST(MediaParts, LowDetailStaysWithinTheLimit) {
  constexpr std::string_view kPart = R"({"type":"image_url","image_url":{"url":"u","detail":"low"}})";
  EXPECT_EQ(read(kPart).value()[0].image.max_pixels, 512 * 512);
  MediaSettings settings;
  settings.limits.max_image_pixels = 100'000;
  const auto made = read(kPart, settings);
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(made.value()[0].image.max_pixels, 100'000);
}

}  // namespace
}  // namespace sparrow
