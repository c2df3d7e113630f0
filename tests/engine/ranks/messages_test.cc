// SPDX-License-Identifier: Apache-2.0
// Calls as messages: what is read is what was written, it takes few bytes, and nothing else is taken for it.
#include "engine/ranks/messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

namespace sparrow {
namespace {

constexpr CallLimits kLimits = {
    .vocab_size = 200064, .num_blocks = 4096, .max_step_tokens = 4096, .max_step_sequences = 64};

// Sequences that come, grow and go as a scheduler would have them.
class Life {
 public:
  explicit Life(uint64_t seed) : random_(seed) {}

  int below(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }

  Batch next() {
    while (static_cast<int>(sequences_.size()) < 1 + below(12)) sequences_.push_back({});
    if (below(4) == 0) sequences_.erase(sequences_.begin() + below(static_cast<int>(sequences_.size())));
    if (below(8) == 0) std::shuffle(sequences_.begin(), sequences_.end(), random_);
    Batch batch{.cu_seqlens_q = {0}};
    for (Sequence& sequence : sequences_) append(batch, sequence);
    for (const Sequence& sequence : sequences_)
      batch.max_blocks = std::max(batch.max_blocks, static_cast<int>(sequence.blocks.size()));
    for (size_t s = 0; s < sequences_.size(); ++s) {
      const std::vector<int32_t>& blocks = sequences_[s].blocks;
      batch.block_table.insert(batch.block_table.end(), blocks.begin(), blocks.end());
      batch.block_table.resize((s + 1) * batch.max_blocks, -1);
    }
    if (num_drawn_ > 0 && below(2) == 0)
      for (int32_t& id : batch.ids) {
        batch.drawn_by.push_back(below(num_drawn_ + 1) - 1);
        if (batch.drawn_by.back() >= 0) id = 0;
      }
    return batch;
  }
  void drew(int count) { num_drawn_ = count; }

 private:
  struct Sequence {
    std::vector<int32_t> blocks;
    int tokens = 0;
  };

  void append(Batch& batch, Sequence& sequence) {
    const int tokens = below(3) == 0 ? 1 + below(300) : 1;
    sequence.tokens += tokens;
    while (static_cast<int64_t>(sequence.blocks.size()) < blocks_for_tokens(sequence.tokens) + below(2))
      sequence.blocks.push_back(below(kLimits.num_blocks));
    for (int position = sequence.tokens - tokens; position < sequence.tokens; ++position) {
      if (below(4) == 0) batch.logit_rows.push_back(batch.num_tokens());
      batch.ids.push_back(below(kLimits.vocab_size));
      batch.positions.push_back(position);
      batch.slots.push_back(int64_t{sequence.blocks[position / kBlockTokens]} * kBlockTokens +
                            position % kBlockTokens);
    }
    batch.cu_seqlens_q.push_back(batch.num_tokens());
    batch.seq_lens.push_back(sequence.tokens);
  }

  std::mt19937_64 random_;
  std::vector<Sequence> sequences_;
  int num_drawn_ = 0;
};

void expect_equal(const Batch& a, const Batch& b) {
  EXPECT_EQ(a.ids, b.ids);
  EXPECT_EQ(a.positions, b.positions);
  EXPECT_EQ(a.slots, b.slots);
  EXPECT_EQ(a.cu_seqlens_q, b.cu_seqlens_q);
  EXPECT_EQ(a.seq_lens, b.seq_lens);
  EXPECT_EQ(a.block_table, b.block_table);
  EXPECT_EQ(a.max_blocks, b.max_blocks);
  EXPECT_EQ(a.logit_rows, b.logit_rows);
  EXPECT_EQ(a.drawn_by, b.drawn_by);
}

TEST(Messages, StepsArriveAsTheyWereSent) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    Life life(seed);
    CallWriter writer(/*draws_elsewhere=*/false);
    CallReader reader(kLimits);
    for (int step = 0; step < 40; ++step) {
      const Batch batch = life.next();
      const bool compare = step % 3 == 0;
      const auto call = reader.read(writer.run(batch, compare));
      ASSERT_TRUE(call.ok()) << call.error().message;
      ASSERT_EQ(call.value()->call, Call::kRun);
      EXPECT_EQ(call.value()->compare, compare);
      expect_equal(call.value()->batch, batch);
      const SamplingParams plain;
      const std::vector<DrawRequest> draws(batch.logit_rows.size(),
                                           {.row = 0, .sample = {.logits = {}, .params = plain}});
      ASSERT_TRUE(reader.read(writer.start_draws(draws)).ok());
      life.drew(static_cast<int>(draws.size()));
      ASSERT_EQ(reader.chain().hash(), writer.chain().hash());
    }
  }
}

// 64 sequences of 128K tokens: whole tables would have 256 KB.
TEST(Messages, ADecodeStepOfLongContextsTakesAKilobyte) {
  constexpr int kSequences = 64, kTokens = 128 << 10;
  CallWriter writer(/*draws_elsewhere=*/false);
  size_t bytes = 0;
  for (int step = 0; step < 2; ++step) {
    Batch batch{.cu_seqlens_q = {0}, .max_blocks = kTokens / kBlockTokens + 1};
    for (int s = 0; s < kSequences; ++s) {
      batch.ids.push_back(0);
      batch.drawn_by.push_back(s);
      batch.positions.push_back(kTokens + step);
      const int first = s * batch.max_blocks;
      for (int b = 0; b < batch.max_blocks; ++b) batch.block_table.push_back(first + b);
      batch.slots.push_back(int64_t{first + batch.max_blocks - 1} * kBlockTokens + step);
      batch.cu_seqlens_q.push_back(s + 1);
      batch.seq_lens.push_back(kTokens + step + 1);
      batch.logit_rows.push_back(s);
    }
    bytes = writer.run(batch, false).size();
  }
  EXPECT_LT(bytes, 1024u);
}

SamplingParams random_params(Life& life) {
  const auto maybe = [&](auto value, auto otherwise) {
    return life.below(2) == 0 ? decltype(otherwise)(value) : otherwise;
  };
  SamplingParams p{.temperature = maybe(0.7, 1.0),
                   .top_p = maybe(0.9, 1.0),
                   .top_k = maybe(40, 0),
                   .min_p = maybe(0.1, 0.0),
                   .repetition_penalty = maybe(1.1, 1.0),
                   .presence_penalty = maybe(0.5, 0.0),
                   .frequency_penalty = maybe(-0.5, 0.0),
                   .seed = maybe(uint64_t{0xfedcba9876543210}, uint64_t{0})};
  for (int i = life.below(3); i > 0; --i) p.logit_bias.emplace_back(life.below(1000), 0.5f * i);
  for (int i = life.below(3); i > 0; --i) p.allowed_ids.push_back(life.below(1000));
  for (int i = life.below(3); i > 0; --i) p.banned_ids.push_back(life.below(1000));
  return p;
}

TEST(Messages, DrawsArriveWithAllThatTheyHangOn) {
  Life life(7);
  CallWriter writer(/*draws_elsewhere=*/true);
  CallReader reader(kLimits);
  Batch batch;
  while (batch.logit_rows.empty()) batch = life.next();
  ASSERT_TRUE(reader.read(writer.run(batch, false)).ok());
  for (int i = 0; i < 500; ++i) {
    const SamplingParams params = random_params(life);
    TokenCounts counts;
    counts.add_prompt(std::vector<int32_t>{1, 2, 3});
    counts.add_output(life.below(5));
    const std::vector<int32_t> banned(life.below(3), 17), only(life.below(3), 18);
    std::vector<uint32_t> mask(life.below(2) * ((kLimits.vocab_size + 31) / 32));
    for (uint32_t& word : mask) word = static_cast<uint32_t>(life.below(1 << 30)) * 3;
    const DrawRequest draw{.row = life.below(static_cast<int>(batch.logit_rows.size())),
                           .sample = {.logits = {},
                                      .params = params,
                                      .counts = &counts,
                                      .more_banned = banned,
                                      .only = only,
                                      .mask = mask,
                                      .choice = static_cast<uint64_t>(life.below(3)),
                                      .position = static_cast<uint64_t>(life.below(100000))},
                           .num_top_logprobs = life.below(2) ? std::optional(life.below(20)) : std::nullopt};
    const auto call = reader.read(writer.start_draws({&draw, 1}));
    ASSERT_TRUE(call.ok()) << call.error().message;
    const DrawRequest& read = call.value()->draws.at(0);
    const SamplingParams& p = read.sample.params;
    EXPECT_EQ(read.row, draw.row);
    EXPECT_EQ(read.num_top_logprobs, draw.num_top_logprobs);
    EXPECT_EQ(read.sample.choice, draw.sample.choice);
    EXPECT_EQ(read.sample.position, draw.sample.position);
    EXPECT_TRUE(std::ranges::equal(read.sample.more_banned, banned));
    EXPECT_TRUE(std::ranges::equal(read.sample.only, only));
    EXPECT_TRUE(std::ranges::equal(read.sample.mask, mask));
    EXPECT_EQ(p.temperature, params.temperature);
    EXPECT_EQ(p.top_p, params.top_p);
    EXPECT_EQ(p.top_k, params.top_k);
    EXPECT_EQ(p.min_p, params.min_p);
    EXPECT_EQ(p.repetition_penalty, params.repetition_penalty);
    EXPECT_EQ(p.presence_penalty, params.presence_penalty);
    EXPECT_EQ(p.frequency_penalty, params.frequency_penalty);
    EXPECT_EQ(p.logit_bias, params.logit_bias);
    EXPECT_EQ(p.allowed_ids, params.allowed_ids);
    EXPECT_EQ(p.banned_ids, params.banned_ids);
    EXPECT_EQ(p.seed, params.seed);
    if (params.has_penalties()) {
      EXPECT_EQ(read.sample.counts->output_count(), counts.output_count());
    }
  }
}

TEST(Messages, OtherCallsArrive) {
  CallWriter writer(/*draws_elsewhere=*/false);
  CallReader reader(kLimits);
  const std::vector<BlockCopy> copies = {{3, 4}, {0, 4095}};
  const auto call = reader.read(writer.copy_blocks(copies));
  ASSERT_TRUE(call.ok()) << call.error().message;
  EXPECT_EQ(call.value()->copies, copies);

  Life life(3);
  Batch batch;
  while (batch.logit_rows.size() < 2) batch = life.next();
  ASSERT_TRUE(reader.read(writer.run(batch, false)).ok());
  const std::vector<PromptRow> rows = {{0, 200063, 0}, {1, 5, kMaxTopLogprobs}};
  ASSERT_TRUE(reader.read(writer.score(rows)).ok());
  for (const Call plain : {Call::kFinishDraws, Call::kLogits, Call::kStop}) {
    const auto read = reader.read(writer.plain(plain));
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read.value()->call, plain);
  }
}

TEST(Messages, OneThatIsMissingOrRepeatedIsSeen) {
  CallWriter writer(/*draws_elsewhere=*/false);
  CallReader reader(kLimits), twice(kLimits);
  const Bytes first = writer.plain(Call::kLogits), second = writer.plain(Call::kLogits);
  EXPECT_EQ(reader.read(second).error().message, "message 2 of rank 0 came where 1 should have");
  ASSERT_TRUE(twice.read(first).ok());
  EXPECT_FALSE(twice.read(first).ok());
}

TEST(Messages, AnyOtherByteIsSeen) {
  Life life(5);
  CallWriter writer(/*draws_elsewhere=*/false);
  Batch batch;
  while (batch.logit_rows.size() < 2) batch = life.next();
  const Bytes message = writer.run(batch, false);
  for (size_t at = 0; at < message.size(); ++at) {
    Bytes other = message;
    other[at] ^= std::byte{0x10};
    EXPECT_FALSE(CallReader(kLimits).read(other).ok()) << at;
    EXPECT_FALSE(CallReader(kLimits).read(std::span(message).first(at)).ok()) << at;
  }
}

// What a sender without bugs would not send, though its hash is right.
TEST(Messages, WhatTheModelHasNotIsRefused) {
  Life life(11);
  Batch batch;
  while (batch.logit_rows.size() < 2) batch = life.next();
  const auto refused = [&](CallLimits limits) {
    CallWriter writer(/*draws_elsewhere=*/false);
    return !CallReader(limits).read(writer.run(batch, false)).ok();
  };
  EXPECT_FALSE(refused(kLimits));
  CallLimits small = kLimits;
  small.vocab_size = *std::ranges::max_element(batch.ids);
  EXPECT_TRUE(refused(small));
  small = kLimits;
  small.num_blocks = *std::ranges::max_element(batch.block_table);
  EXPECT_TRUE(refused(small));
  small = kLimits;
  small.max_step_tokens = batch.num_tokens() - 1;
  EXPECT_TRUE(refused(small));
  small = kLimits;
  small.max_step_sequences = batch.num_sequences() - 1;
  EXPECT_TRUE(refused(small));

  CallWriter writer(/*draws_elsewhere=*/false);
  CallReader reader(kLimits);
  ASSERT_TRUE(reader.read(writer.run(batch, false)).ok());
  const PromptRow beyond{static_cast<int64_t>(batch.logit_rows.size()), 0, 0};
  EXPECT_FALSE(reader.read(writer.score({&beyond, 1})).ok());
}

TEST(Messages, PatchesArriveAndOnlyWhereThereIsRoom) {
  CallLimits limits = kLimits;
  limits.feature_tokens = 10, limits.patch_numbers = 3, limits.merge_side = 2;
  const std::vector<float> patches = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, -12};
  const EncodeJob good{.grid = {1, 2, 2}, .patches = patches, .rows = {9}};
  const auto read = [&](const EncodeJob& job) {
    CallWriter writer(/*draws_elsewhere=*/false);
    CallReader reader(limits);
    const auto call = reader.read(writer.encode(std::array{good, job}));
    if (!call.ok()) return false;
    const EncodeJob& got = call.value()->jobs.at(1);
    EXPECT_EQ(got.group, job.group);
    EXPECT_EQ(got.grid, job.grid);
    EXPECT_EQ(got.rows, job.rows);
    EXPECT_TRUE(std::ranges::equal(got.patches, job.patches));
    return true;
  };
  EXPECT_TRUE(read(good));
  EXPECT_TRUE(read({.group = limits.num_groups - 1, .grid = {1, 2, 2}, .patches = patches, .rows = {0}}));
  EXPECT_FALSE(read({.group = limits.num_groups, .grid = {1, 2, 2}, .patches = patches, .rows = {0}}));
  EXPECT_FALSE(read({.grid = {1, 2, 2}, .patches = patches, .rows = {10}}));
  EXPECT_FALSE(read({.grid = {1, 2, 2}, .patches = patches, .rows = {1, 2}}));
  EXPECT_FALSE(read({.grid = {1, 2, 4}, .patches = patches, .rows = {1, 2}}));
  EXPECT_FALSE(read({.grid = {1, 4, 1}, .patches = patches, .rows = {1}}));
  EXPECT_FALSE(read({.grid = {0, 2, 2}, .patches = {}, .rows = {}}));
  EXPECT_FALSE(read({.grid = {1, 2, 2}, .patches = std::span(patches).first(11), .rows = {1}}));
}

TEST(Messages, RowsOfFeaturesArrive) {
  Life life(17);
  Batch batch = life.next();
  CallLimits limits = kLimits;
  limits.feature_tokens = 10;
  const auto read = [&](int32_t row) {
    batch.feature_rows.assign(batch.ids.size(), -1);
    batch.feature_rows.back() = row;
    CallWriter writer(/*draws_elsewhere=*/false);
    CallReader reader(limits);
    const auto call = reader.read(writer.run(batch, false));
    return call.ok() && call.value()->batch.feature_rows == batch.feature_rows;
  };
  EXPECT_TRUE(read(-1));
  EXPECT_TRUE(read(9));
  EXPECT_FALSE(read(10));
}

TEST(Messages, GroupsArriveAndHaveBlocksOfTheirOwn) {
  Life life(13);
  Batch batch;
  while (batch.num_sequences() < 3) batch = life.next();
  CallLimits limits = kLimits;
  limits.num_groups = 2;
  const auto read = [&](std::vector<int32_t> groups, int32_t second_from) {
    Batch grouped = batch;
    grouped.group_sequences = std::move(groups);
    // Blocks of the first half for the first group, of the second for the other.
    for (int s = 0; s < grouped.num_sequences(); ++s)
      for (int b = 0; b < grouped.max_blocks; ++b)
        if (int32_t& block = grouped.block_table[s * grouped.max_blocks + b]; block >= 0)
          block = block % 2048 + (s < second_from ? 0 : 2048);
    for (int s = 0; s < grouped.num_sequences(); ++s)
      for (int row = grouped.cu_seqlens_q[s]; row < grouped.cu_seqlens_q[s + 1]; ++row) {
        const int position = grouped.positions[row];
        grouped.slots[row] =
            int64_t{grouped.block_table[s * grouped.max_blocks + position / kBlockTokens]} * kBlockTokens +
            position % kBlockTokens;
      }
    CallWriter writer(/*draws_elsewhere=*/true);
    CallReader reader(limits);
    const auto call = reader.read(writer.run(grouped, false));
    if (call.ok()) {
      EXPECT_EQ(call.value()->batch.group_sequences, grouped.group_sequences);
    }
    return call.ok();
  };
  const int end = batch.num_sequences();
  EXPECT_TRUE(read({0, 2, end}, 2));
  EXPECT_TRUE(read({0, end, end}, end));
  EXPECT_FALSE(read({0, 2, end}, 1)) << "a block of another group";
  EXPECT_FALSE(read({0, 1, 2, end}, 1)) << "more groups than there are";
  EXPECT_FALSE(read({}, end)) << "no groups";
  EXPECT_FALSE(read({1, 2, end}, 2)) << "a sequence of no group";
}

TEST(Messages, RepliesArrive) {
  const TokenLogprobs logprobs{.token = {5, -0.5f}, .rank = 2, .top = {{4, -0.25f}, {5, -0.5f}}};
  CallReply reply{.serial = 300, .chain = ~uint64_t{0}, .replica = 17, .times = {0.25, 7.5}};
  reply.draws.push_back({5, logprobs});
  reply.draws.push_back({Error{Errc::kCorrupt, "no numbers"}, std::nullopt});
  reply.scores = {std::nullopt, logprobs};
  reply.logits = {1.5f, -2.0f};
  const Bytes bytes = write_reply(reply);
  const auto read = read_reply(bytes, 6);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->serial, reply.serial);
  EXPECT_EQ(read->chain, reply.chain);
  EXPECT_EQ(read->replica, reply.replica);
  EXPECT_EQ(read->times.step_seconds, 0.25);
  EXPECT_EQ(read->times.peer_wait_seconds, 7.5);
  ASSERT_EQ(read->draws.size(), 2u);
  EXPECT_EQ(read->draws[0].id.value(), 5);
  EXPECT_EQ(read->draws[0].logprobs->rank, 2);
  EXPECT_EQ(read->draws[0].logprobs->top.at(1).id, 5);
  EXPECT_EQ(read->draws[1].id.error().message, "no numbers");
  ASSERT_EQ(read->scores.size(), 2u);
  EXPECT_FALSE(read->scores[0]);
  EXPECT_EQ(read->scores[1]->token.logprob, -0.5f);
  EXPECT_EQ(read->logits, reply.logits);
  EXPECT_FALSE(read_reply(bytes, 5).ok()) << "an id that the model has not";
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(read_reply(std::span(bytes).first(size), 6).ok()) << size;
}

}  // namespace
}  // namespace sparrow
