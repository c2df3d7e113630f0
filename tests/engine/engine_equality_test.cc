// SPDX-License-Identifier: Apache-2.0
// A request's greedy output depends on the request alone. Random scenarios, each against the output of every
// prompt in a run of its own: batched, in any chunks, after prefix hits, after preemption, beside neighbours
// that are cancelled or sample, with slow readers, with n > 1. And the check itself is checked: with one lane
// of the cached blocks spoiled, outputs must differ.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>

#include "engine/engine_core.h"
#include "support/engine_model.h"

namespace sparrow {
namespace {

using test::EngineModel;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kNumSeeds = 24;
#else
constexpr int kNumSeeds = 320;
#endif
constexpr int kMaxNewTokens = 10;
// More steps than any scenario needs by far: past it, somebody starves.
constexpr int kMaxSteps = 20000;

struct Client {
  std::vector<int32_t> prompt;
  Request request;
  int arrives = 0;      // step
  int cancels = -1;     // step; -1: never
  int reads_every = 1;  // steps

  std::shared_ptr<TokenChannel> channel;
  std::unique_ptr<TokenStream> stream;
  std::vector<std::vector<int32_t>> ids;           // [choice]
  std::vector<std::optional<FinishReason>> ended;  // [choice]
  int64_t cached_tokens = 0;
};

// What the scenarios have been through, to know that they were worth something.
struct Coverage {
  int64_t outputs = 0, cancelled = 0, forked = 0, hits = 0, hits_inside_a_block = 0, chunked = 0;
  int64_t preemptions = 0, mismatches = 0;
};

class Scenario {
 public:
  Scenario(EngineModel& model, uint64_t seed) : model_(model), random_(seed) {
    int64_t longest = 0;
    int most_choices = 1;
    const int num_clients = 3 + below(5);
    for (int i = 0; i < num_clients; ++i) {
      clients_.push_back(make_client());
      most_choices = std::max(most_choices, clients_.back().request.n);
      longest = std::max(
          longest, static_cast<int64_t>(clients_.back().prompt.size()) + clients_.back().request.max_tokens);
    }
    options_.cache_tokens = (blocks_for_tokens(longest) + (below(2) ? below(3) : below(20))) * kBlockTokens;
    options_.threads = 1;
    options_.max_sequences = std::max(most_choices, 1 + below(8));
    options_.max_batch_tokens = std::max(options_.max_sequences, pick({5, 33, 64, 127, 128, 129, 200, 512}));
    options_.prefix_caching = below(8) != 0;
    options_.events_per_output = below(3) == 0 ? 1 : 16;
    options_.block_order_seed = random_();
  }

  // Called after every step; may change the cache.
  using Hook = std::function<void(EngineCore&)>;

  void run(Coverage& coverage, const Hook& hook = {}) {
    const auto core = EngineCore::create(model_.config(), model_.weights(), options_).value();
    const SchedulerTime start{};
    int step = 0;
    for (bool left = true; left; ++step) {
      ASSERT_LT(step, kMaxSteps) << "somebody starves";
      const SchedulerTime now = start + std::chrono::milliseconds(step);
      for (size_t i = 0; i < clients_.size(); ++i) act(*core, i, step, now);
      const bool ran = core->step(now);
      core->deliver();
      if (hook) hook(*core);
      left = false;
      for (size_t i = 0; i < clients_.size(); ++i) {
        Client& client = clients_[i];
        // Nothing could run: slow readers must catch up for anything to go on.
        if (client.stream && (!ran || step % client.reads_every == 0)) read(client);
        if (client.channel) core->attend(i);
        left = left || !client.stream || !client.stream->done();
      }
    }
    EXPECT_TRUE(core->idle());
    const EngineStats stats = core->stats();
    EXPECT_EQ(stats.blocks_in_use, 0);
    EXPECT_EQ(stats.blocks_cached + stats.blocks_free, stats.blocks_total);
    coverage.preemptions += stats.preemptions;
    for (const Client& client : clients_) compare(client, coverage);
  }

 private:
  int below(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }
  int pick(std::initializer_list<int> values) {
    return values.begin()[below(static_cast<int>(values.size()))];
  }

  // Few texts with few lengths: many prompts share a prefix, and many outputs are known already.
  std::vector<int32_t> make_prompt() {
    const int length = pick({1, 2, 100, 127, 128, 129, 200, 255, 256, 257, 300, 383, 384, 385, 430});
    std::vector<int32_t> prompt = model_.text(0, length);
    const int shared = pick({0, 128, 200, 256, 1000});
    if (shared < length) {
      const std::vector<int32_t> other = model_.text(1 + below(2), length);
      std::copy(other.begin() + shared, other.end(), prompt.begin() + shared);
    }
    return prompt;
  }

  Client make_client() {
    Client client{.prompt = make_prompt()};
    Request& r = client.request;
    r.prompts = {client.prompt};
    r.max_tokens = 1 + below(kMaxNewTokens);
    r.ignore_eos = true;
    r.sampling.temperature = 0;
    if (below(5) == 0) r.n = 2 + below(2);
    if (below(6) == 0) r.priority = below(3) - 1;
    if (below(6) == 0) r.logprobs = below(3);
    if (below(8) == 0) r.prompt_logprobs = 0;
    if (below(5) == 0) {  // a neighbour whose draws are its own affair
      r.sampling.temperature = 1;
      r.sampling.seed = random_();
      r.sampling.repetition_penalty = 1.2;
    }
    client.arrives = below(3) == 0 ? below(30) : 0;
    if (below(4) == 0) client.cancels = client.arrives + below(12);
    client.reads_every = below(3) == 0 ? 1 + below(6) : 1;
    client.ids.resize(r.n);
    client.ended.resize(r.n);
    return client;
  }

  void act(EngineCore& core, size_t i, int step, SchedulerTime now) {
    Client& client = clients_[i];
    if (client.arrives == step) {
      client.channel = std::make_shared<TokenChannel>(client.request.n, options_.events_per_output, [] {});
      client.stream = std::make_unique<TokenStream>(client.channel);
      core.add(i, client.request, client.channel, now);
    }
    if (client.cancels == step && client.stream) client.stream->cancel();
    if (client.stream) core.attend(i);
  }

  static void read(Client& client) {
    while (const auto event = client.stream->try_next()) {
      EXPECT_FALSE(client.ended[event->output]) << "an event after the last one";
      if (event->id) client.ids[event->output].push_back(*event->id);
      client.ended[event->output] = event->finish;
      client.cached_tokens = event->cached_tokens;
      EXPECT_EQ(event->error, "");
    }
  }

  void compare(const Client& client, Coverage& coverage) {
    const bool cancelled = client.cancels >= 0;
    coverage.hits += client.cached_tokens > 0;
    coverage.hits_inside_a_block += client.cached_tokens % kBlockTokens != 0;
    coverage.chunked += static_cast<int>(client.prompt.size()) > options_.max_batch_tokens;
    coverage.cancelled += client.ended[0] == FinishReason::kCancelled;
    coverage.forked += client.request.n > 1;
    if (client.request.sampling.temperature > 0) return;
    const auto alone = model_.greedy_alone(client.prompt, kMaxNewTokens);
    for (size_t choice = 0; choice < client.ids.size(); ++choice) {
      const std::vector<int32_t>& ids = client.ids[choice];
      ++coverage.outputs;
      if (!cancelled) {
        EXPECT_EQ(client.ended[choice], FinishReason::kLength);
        EXPECT_EQ(static_cast<int64_t>(ids.size()), client.request.max_tokens);
      }
      coverage.mismatches += !std::equal(ids.begin(), ids.end(), alone.begin());
    }
  }

  EngineModel& model_;
  std::mt19937_64 random_;
  EngineOptions options_;
  std::vector<Client> clients_;
};

// Selection must matter for a lost index key to show: with two blocks for each head it does from the third
// on.
constexpr int kTopKBlocks = 2;

TEST(EngineEquality, GreedyIdsDependOnTheRequestAlone) {
  Coverage coverage;
  EngineModel yarn("yarn", kTopKBlocks), bf16("bf16", kTopKBlocks);
  for (uint64_t seed = 0; seed < kNumSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const int64_t before = coverage.mismatches;
    Scenario(seed % 4 == 3 ? bf16 : yarn, seed).run(coverage);
    ASSERT_EQ(coverage.mismatches, before) << "an output differs from the one of its prompt alone";
    if (testing::Test::HasFailure()) return;
  }
  std::printf(
      "%d seeds: %ld outputs equal; %ld requests chunked, %ld with a prefix hit, %ld of them inside a block, "
      "%ld with n > 1, %ld cancelled; %ld preemptions\n",
      kNumSeeds, coverage.outputs, coverage.chunked, coverage.hits, coverage.hits_inside_a_block,
      coverage.forked, coverage.cancelled, coverage.preemptions);
  EXPECT_GT(coverage.outputs, 3 * kNumSeeds);
  for (const int64_t count : {coverage.chunked, coverage.hits, coverage.hits_inside_a_block, coverage.forked,
                              coverage.cancelled, coverage.preemptions})
    EXPECT_GT(count, kNumSeeds / 8);
}

// One lane of every cached block: the index keys of the sparse layers, nothing else.
void spoil_index_keys(EngineCore& core) {
  const BlockPool& pool = core.runner().pool();
  const KvCache& cache = core.runner().cache();
  const KvCacheShape& shape = cache.shape();
  for (BlockId block = 0; block < shape.num_blocks; ++block) {
    if (!pool.is_kept(block) || pool.num_owners(block) > 0) continue;
    for (int layer = 0; layer < shape.num_layers(); ++layer)
      if (shape.layer_is_sparse[layer])
        std::memset(static_cast<std::byte*>(cache.index_pages(layer)) + block * shape.index_page_bytes(), 0,
                    shape.index_page_bytes());
  }
}

TEST(EngineEquality, GoesRedWhenIndexKeysOfCachedBlocksAreLost) {
  Coverage coverage;
  EngineModel yarn("yarn", kTopKBlocks);
  for (uint64_t seed = 0; seed < 24; ++seed) Scenario(yarn, seed).run(coverage, spoil_index_keys);
  EXPECT_GT(coverage.mismatches, 0) << "of " << coverage.outputs << " outputs, " << coverage.hits
                                    << " requests with a prefix hit";
}

}  // namespace
}  // namespace sparrow
