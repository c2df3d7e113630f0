// SPDX-License-Identifier: Apache-2.0
// Which features are encoded when, what stays, and who gets on.
#include "engine/media/feature_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "engine/schedule/sequence.h"

namespace sparrow {
namespace {

constexpr int64_t kAny = Sequence::kNoEnd;
const VisionConfig kVision = {.hidden_size = 160, .num_heads = 2, .image_token_id = 8, .video_token_id = 9};

// A picture of so many tokens at a position.
RequestMedium picture(int number, int64_t begin, int tokens, int frames = 1) {
  RequestMedium medium{.grid = {frames, 2, 2 * tokens}};
  medium.patches = std::make_shared<std::vector<float>>(static_cast<size_t>(medium.grid.patches()) * 1176);
  medium.digest[0] = static_cast<uint8_t>(number);
  for (int frame = 0; frame < frames; ++frame, begin += tokens + 1)
    medium.runs.push_back({begin, begin + tokens});
  return medium;
}

struct Bed {
  BlockPool pool{4};
  FeatureStore store;
  explicit Bed(int64_t rows, int64_t max_patches = kAny) : store(rows, max_patches) {}

  Sequence sequence(std::vector<RequestMedium> media, const std::string& salt = "") {
    Sequence result{.ids = std::vector<int32_t>(300), .blocks = BlockTable(pool)};
    result.segments = media_of(media, 0, kVision, salt).segments;
    return result;
  }
  size_t plan(std::vector<Sequence*> sequences) { return store.plan(sequences).size(); }
};

TEST(FeatureStore, APictureSeenAgainCostsNothing) {
  Bed bed(20);
  Sequence first = bed.sequence({picture(1, 5, 10)}), again = bed.sequence({picture(1, 50, 10)});
  EXPECT_EQ(bed.plan({&first}), 1u);
  EXPECT_EQ(bed.plan({&again}), 0u);
  EXPECT_EQ(again.num_ready, kAny);
  EXPECT_EQ(bed.store.stats().encoded, 1);
  const auto one = bed.store.rows_of(first.segments->front()),
             two = bed.store.rows_of(again.segments->front());
  EXPECT_TRUE(std::ranges::equal(one, two));
}

TEST(FeatureStore, AnotherKeysPictureIsAnother) {
  Bed bed(20);
  Sequence mine = bed.sequence({picture(1, 5, 10)}, "me"), theirs = bed.sequence({picture(1, 5, 10)}, "you");
  EXPECT_EQ(bed.plan({&mine}), 1u);
  EXPECT_EQ(bed.plan({&theirs}), 1u);
}

TEST(FeatureStore, WhatWasNotUsedForLongestGoesFirst) {
  Bed bed(20);
  Sequence a = bed.sequence({picture(1, 0, 10)}), b = bed.sequence({picture(2, 0, 10)}),
           c = bed.sequence({picture(3, 0, 10)});
  bed.plan({&a});
  bed.plan({&b});
  bed.plan({&a});
  EXPECT_EQ(bed.plan({&c}), 1u);
  EXPECT_EQ(bed.plan({&a}), 0u);
  EXPECT_EQ(bed.plan({&b}), 1u);
  EXPECT_EQ(bed.store.stats().rows_in_use, 20);
}

TEST(FeatureStore, ASequenceRunsUpToWhatIsMissing) {
  Bed bed(15);
  Sequence s = bed.sequence({picture(1, 5, 10), picture(2, 40, 10)});
  EXPECT_EQ(bed.plan({&s}), 1u);
  EXPECT_EQ(s.num_ready, 40);
  s.num_computed = 12;  // still inside the first picture
  EXPECT_EQ(bed.plan({&s}), 0u);
  s.num_computed = 15;  // past it: its rows may go
  EXPECT_EQ(bed.plan({&s}), 1u);
  EXPECT_EQ(s.num_ready, kAny);
}

TEST(FeatureStore, TheFirstSequenceAlwaysGetsOn) {
  Bed bed(20);
  Sequence best = bed.sequence({picture(1, 5, 15)}), other = bed.sequence({picture(2, 5, 15)});
  EXPECT_EQ(bed.plan({&other}), 1u);
  EXPECT_EQ(bed.plan({&best, &other}), 1u);
  EXPECT_EQ(best.num_ready, kAny);
  EXPECT_EQ(other.num_ready, 5);
}

TEST(FeatureStore, TakesNoMoreThanItsBudgetButOneAtLeast) {
  Bed one(100, 1), two(100, 80);
  Sequence s = one.sequence({picture(1, 0, 10), picture(2, 20, 10), picture(3, 40, 10)});
  EXPECT_EQ(one.plan({&s}), 1u);
  EXPECT_EQ(s.num_ready, 20);
  EXPECT_EQ(two.plan({&s}), 2u);
  EXPECT_EQ(s.num_ready, 40);
}

TEST(FeatureStore, AClipIsSegmentsOfItsFrames) {
  Bed bed(100);
  const RequestMedium clip = picture(1, 10, 3, 9);
  Sequence s = bed.sequence({clip});
  ASSERT_EQ(s.segments->size(), 3u);
  EXPECT_EQ(s.segments->at(1).first_patch, 4 * 12);
  EXPECT_EQ(s.segments->at(1).begin(), 26);
  EXPECT_EQ(s.segments->at(2).num_tokens(), 3);
  const std::vector<EncodeJob> jobs = bed.store.plan(std::array{&s});
  ASSERT_EQ(jobs.size(), 3u);
  EXPECT_EQ(jobs[1].patches.data(), clip.patches->data() + 4 * 12 * 1176);
  EXPECT_EQ(jobs[2].rows.size(), 3u);
}

TEST(RequestMedia, MustFitItsPrompt) {
  std::vector<std::vector<int32_t>> prompts = {std::vector<int32_t>(30, 8)};
  prompts[0][0] = 1;
  const RequestMediaLimits limits{.vision = kVision, .feature_tokens = 100};
  const auto message = [&](const RequestMedium& medium, const RequestMediaLimits& with) {
    const Status status = validate(std::vector{medium}, prompts, with);
    return status.ok() ? "" : status.error().message;
  };
  EXPECT_EQ(message(picture(1, 5, 10), limits), "");
  EXPECT_EQ(message(picture(1, 5, 10), {}), "medium 0: this model takes no images here");
  EXPECT_EQ(message(picture(1, 0, 10), limits), "medium 0: not all ids at [0, 10) are placeholders");
  EXPECT_EQ(message(picture(1, 25, 10), limits),
            "medium 0: its placeholders [25, 35) are out of place in a prompt of 30 tokens");
  EXPECT_EQ(message(picture(1, 5, 10), {.vision = kVision, .feature_tokens = 9}),
            "medium 0: 10 tokens must be kept at a time, and there is room for 9");
  RequestMedium wrong = picture(1, 5, 10);
  wrong.runs[0].end = 14;
  EXPECT_EQ(message(wrong, limits), "medium 0: 9 placeholders for 10 tokens");
  wrong = picture(1, 5, 10);
  wrong.grid.w += 2;
  EXPECT_EQ(message(wrong, limits), "medium 0: 47040 numbers for 44 patches of 1176");
  wrong = picture(1, 5, 10);
  wrong.grid.h = 3;
  EXPECT_EQ(message(wrong, limits), "medium 0: 3 x 20 patches do not come in squares of 2");
  wrong = picture(1, 5, 10);
  wrong.prompt = 1;
  EXPECT_EQ(message(wrong, limits), "medium 0: it belongs to prompt 1, and there are 1");
  const Status twice = validate(std::vector{picture(1, 5, 10), picture(2, 10, 10)}, prompts, limits);
  EXPECT_FALSE(twice.ok());
}

TEST(RequestMedia, FindsItsPlaceInThePrompt) {
  const std::vector<int32_t> ids = {1, 8, 8, 8, 2, 9, 9, 3, 9, 9, 4};
  std::vector<RequestMedium> media = {picture(1, 0, 3), picture(2, 0, 2, 2)};
  ASSERT_TRUE(place(media, ids, kVision).ok());
  EXPECT_EQ(media[0].runs.front().begin, 1);
  ASSERT_EQ(media[1].runs.size(), 2u);
  EXPECT_EQ(media[1].runs[1].begin, 8);
  EXPECT_TRUE(validate(media, std::span(&ids, 1), {.vision = kVision, .feature_tokens = 100}).ok());
  EXPECT_EQ(place(std::span(media).first(1), ids, kVision).error().message,
            "medium 1: a placeholder at 5 stands for none");
  media.push_back(picture(3, 0, 1));
  EXPECT_EQ(place(media, ids, kVision).error().message, "medium 2: 0 placeholders at 11 for 1 tokens");
}

}  // namespace
}  // namespace sparrow
