// SPDX-License-Identifier: Apache-2.0
// Which features are encoded when, what stays, and who gets on.
#include "engine/media/feature_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "engine/media/encode_share.h"
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
  explicit Bed(int64_t rows, int64_t max_patches = kAny, int groups = 1, int ranks = 1)
      : store(rows, max_patches, groups, ranks) {}

  // Of a key; its salts are its own.
  Sequence sequence(std::vector<RequestMedium> media, const std::string& key = "", int group = 0) {
    Sequence result{.ids = std::vector<int32_t>(300), .blocks = BlockTable(pool)};
    result.segments = media_of(media, 0, kVision, key, key).segments;
    result.group = group;
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
  const auto one = bed.store.rows_of(0, first.segments->front()),
             two = bed.store.rows_of(0, again.segments->front());
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
  EXPECT_EQ(bed.store.rows_in_use(), 20);
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

// A step waits for the rank that has most to do: two pictures of 40 patches are over a budget of 60, however
// little the others have.
TEST(FeatureStore, NoRankHasMoreThanItsBudgetButOnePictureAtLeast) {
  constexpr int kRanks = 4;
  Bed bed(200, 60, 1, kRanks), small(200, 30, 1, kRanks);
  std::vector<RequestMedium> media;
  for (int i = 0; i < 2 * kRanks; ++i) media.push_back(picture(i + 1, 20 * i, 10));
  Sequence s = bed.sequence(media);
  std::vector<int64_t> patches(kRanks);
  EncodeTurns turns(kRanks);
  for (const EncodeJob& job : bed.store.plan(std::array{&s}))
    patches[static_cast<size_t>(turns.next(job.grid.patches()))] += job.grid.patches();
  EXPECT_EQ(patches, std::vector<int64_t>(kRanks, 40));
  EXPECT_EQ(s.num_ready, 20 * kRanks);
  EXPECT_EQ(bed.plan({&s}), size_t{kRanks});
  EXPECT_EQ(small.plan({&s}), size_t{kRanks});
}

// What others send is nothing that a key could find out: not by what is encoded, not by what is found.
TEST(FeatureStore, KeysWithTheSamePictureEncodeItEach) {
  Bed bed(100);
  for (int round = 0; round < 2; ++round)
    for (const char* key : {"a", "b", "c"}) {
      Sequence s = bed.sequence({picture(1, 5, 10)}, key);
      EXPECT_EQ(bed.plan({&s}), round == 0 ? 1u : 0u) << key << " in round " << round;
    }
  EXPECT_EQ(bed.store.stats().encoded, 3);
}

TEST(FeatureStore, AKeyTakesNoMoreThanItsPartFromOthers) {
  Bed bed(40);
  Sequence quiet[] = {bed.sequence({picture(1, 0, 10)}, "quiet"), bed.sequence({picture(2, 0, 10)}, "quiet")};
  for (Sequence& s : quiet) EXPECT_EQ(bed.plan({&s}), 1u);
  // A hundred pictures of another key go through the half that is its part, not the first in the row alone.
  for (int i = 0; i < 100; ++i) {
    Sequence s[] = {bed.sequence({picture(10 + i, 0, 5)}, "loud"),
                    bed.sequence({picture(110 + i, 0, 5)}, "loud")};
    EXPECT_EQ(bed.plan({&s[0], &s[1]}), 2u);
  }
  EXPECT_EQ(bed.store.rows_in_use(), 40);
  for (Sequence& s : quiet) EXPECT_EQ(bed.plan({&s}), 0u) << "its features are gone";
}

TEST(FeatureStore, WhatAKeyHasBeyondItsPartGoesToOthers) {
  Bed bed(40);
  Sequence first[] = {bed.sequence({picture(1, 0, 10)}, "a"), bed.sequence({picture(2, 0, 10)}, "a"),
                      bed.sequence({picture(3, 0, 10)}, "a"), bed.sequence({picture(4, 0, 10)}, "a")};
  for (Sequence& s : first) EXPECT_EQ(bed.plan({&s}), 1u);
  Sequence late[] = {bed.sequence({picture(1, 0, 10)}, "b"), bed.sequence({picture(2, 0, 10)}, "b")};
  for (Sequence& s : late) EXPECT_EQ(bed.plan({&s}), 1u);
  EXPECT_EQ(bed.plan({&first[2], &first[3], &late[0], &late[1]}), 0u) << "those used last stayed";
  EXPECT_EQ(bed.plan({&first[0]}), 1u);
}

// Otherwise it would never run; but only when nothing else of its sequence can.
TEST(FeatureStore, APictureLargerThanItsKeysPartGoesInWhenItsTurnHasCome) {
  Bed bed(40);
  Sequence small = bed.sequence({picture(1, 0, 12)}, "small");
  bed.plan({&small});
  small.num_computed = 12;
  Sequence large = bed.sequence({picture(2, 20, 35)}, "large"), other = bed.sequence({picture(3, 0, 3)}, "x");
  EXPECT_EQ(bed.plan({&large}), 0u);
  EXPECT_EQ(large.num_ready, 20);
  large.num_computed = 20;
  EXPECT_EQ(bed.plan({&other, &large}), 1u);
  EXPECT_EQ(large.num_ready, 20) << "it is not the first";
  other.num_computed = 3;
  EXPECT_EQ(bed.plan({&large}), 1u);
  EXPECT_EQ(large.num_ready, kAny);
}

TEST(FeatureStore, GroupsHaveTheirOwnRowsAndBudget) {
  Bed bed(20, 40, 2);
  Sequence a = bed.sequence({picture(1, 0, 10), picture(2, 20, 10)}),
           b = bed.sequence({picture(1, 0, 10), picture(2, 20, 10)}, "", 1);
  const std::vector<EncodeJob> jobs = bed.store.plan(std::array{&a, &b});
  ASSERT_EQ(jobs.size(), 2u);  // of each group what its budget has room for
  EXPECT_EQ(jobs[0].group, 0);
  EXPECT_EQ(jobs[1].group, 1);
  EXPECT_EQ(a.num_ready, 20);
  EXPECT_EQ(b.num_ready, 20);
  EXPECT_EQ(bed.plan({&b}), 1u);
  EXPECT_EQ(bed.store.rows_in_use(), 30);
}

// What the ranks of a grid of GPUs encode together: every picture once, in the group that needs it, and every
// row is in the memory of one rank of that group.
TEST(EncodeShare, EveryPictureIsEncodedOnce) {
  constexpr int kGroups = 2, kRanks = 2;
  Bed bed(40, kAny, kGroups);
  Sequence a = bed.sequence({picture(1, 0, 10), picture(2, 20, 10), picture(3, 40, 10)}),
           b = bed.sequence({picture(4, 0, 10), picture(5, 20, 10)}, "", 1);
  const std::vector<EncodeJob> jobs = bed.store.plan(std::array{&a, &b});
  std::vector<int> times(jobs.size());
  for (int group = 0; group < kGroups; ++group) {
    std::vector<EncodeShare> ranks;
    for (int rank = 0; rank < kRanks; ++rank) ranks.emplace_back(group, rank, kRanks, 40);
    for (EncodeShare& rank : ranks)
      for (const EncodeJob* job : rank.take(jobs)) ++times[static_cast<size_t>(job - jobs.data())];
    for (const EncodeJob& job : jobs) {
      if (job.group != group) continue;
      for (const int32_t row : job.rows)
        EXPECT_EQ(std::ranges::count_if(ranks, [&](const EncodeShare& rank) { return rank.has(row); }), 1);
    }
    EXPECT_LE(ranks[0].take(jobs).size(), ranks[1].take(jobs).size() + 1);
  }
  EXPECT_EQ(times, std::vector<int>(jobs.size(), 1));
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
