// SPDX-License-Identifier: Apache-2.0
// Many threads that submit, read slowly, cancel and drop; and whether anything is left behind.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <random>
#include <thread>

#include "engine/engine.h"
#include "kv/block_table.h"
#include "support/engine/engine_model.h"
#include "support/variant.h"

// Sanitizers bring their own allocator.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SPARROW_COUNT_ALLOCATIONS
namespace {
std::atomic<int64_t> bytes_held{0}, blocks_held{0};
}  // namespace

void* operator new(size_t size) {
  void* memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  bytes_held += static_cast<int64_t>(malloc_usable_size(memory));
  ++blocks_held;
  return memory;
}

void operator delete(void* memory) noexcept {
  if (memory == nullptr) return;
  bytes_held -= static_cast<int64_t>(malloc_usable_size(memory));
  --blocks_held;
  std::free(memory);
}

void operator delete(void* memory, size_t) noexcept {
  operator delete(memory);
}
#endif

namespace sparrow {
namespace {

using std::chrono::milliseconds;

constexpr int kThreads = 8;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kDefaultRequests = 600;
#else
constexpr int kDefaultRequests = 4000;
#endif

// SPARROW_STRESS_REQUESTS=100000 for the long run.
int num_requests() {
  const char* text = std::getenv("SPARROW_STRESS_REQUESTS");
  return text ? std::atoi(text) : kDefaultRequests;
}

struct Counts {
  std::atomic<int64_t> ended{0}, cancelled{0}, dropped{0}, refused{0};
};

Request random_request(const test::EngineModel& model, std::mt19937_64& random) {
  const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<uint64_t>(bound)); };
  // Now and then more than a block, so that blocks are published, found and evicted.
  Request request{.prompts = {model.text(below(4), below(20) == 0 ? 130 + below(140) : 1 + below(12))}};
  if (below(8) == 0) request.prompts.push_back(model.text(below(4), 1 + below(12)));
  if (below(8) == 0) request.n = 2;
  request.max_tokens = 1 + below(4);
  request.ignore_eos = true;
  request.sampling.temperature = below(2);
  request.sampling.seed = random();
  if (below(8) == 0) request.sampling.repetition_penalty = 1.1;
  if (below(8) == 0) request.logprobs = 2;
  if (below(16) == 0) request.prompt_logprobs = 1;
  if (below(16) == 0) request.queue_timeout = milliseconds(below(3));
  return request;
}

// Reads, stops half way or never begins.
void consume(std::unique_ptr<TokenStream> stream, std::mt19937_64& random, Counts& counts) {
  const uint64_t manner = random() % 10;
  if (manner == 0) {
    ++counts.dropped;
    return;
  }
  if (manner == 1) stream->cancel();
  if (manner == 2) std::this_thread::sleep_for(milliseconds(1));
  int taken = 0;
  while (const auto event = stream->next()) {
    if (manner == 3 && ++taken == 2) stream->cancel();
    if (event->finish == FinishReason::kCancelled) ++counts.cancelled;
    if (event->finish) ++counts.ended;
    ASSERT_EQ(event->error, "");
  }
  EXPECT_TRUE(stream->done());
}

void hammer(Engine& engine, const test::EngineModel& model, int count, Counts& counts, uint64_t seed) {
  std::atomic<int> left{count};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed + static_cast<uint64_t>(t));
      std::vector<std::unique_ptr<TokenStream>> open;
      while (left.fetch_sub(1) > 0) {
        auto stream = engine.submit(random_request(model, random));
        if (!stream.ok()) {
          ASSERT_EQ(stream.error().code, Errc::kBusy) << stream.error().message;
          ++counts.refused;
          std::this_thread::sleep_for(milliseconds(1));
          continue;
        }
        open.push_back(std::move(stream).value());
        if (open.size() < 6) continue;
        for (auto& each : open) consume(std::move(each), random, counts);
        open.clear();
      }
      for (auto& each : open) consume(std::move(each), random, counts);
    });
  for (std::thread& thread : threads) thread.join();
  while (engine.stats().live_requests > 0) std::this_thread::sleep_for(milliseconds(1));
}

EngineOptions stress_options() {
  return {.cache_tokens = 24 * kBlockTokens,
          .cpu = {.threads = test::test_threads(), .isa = test::test_isa()},
          .max_step_tokens = 128,
          .max_step_sequences = 32,
          .max_queued_requests = 40,
          .events_per_output = 2};
}

TEST(EngineStress, EightThreadsSubmitAndCancelAndNothingIsLeft) {
  const test::EngineModel model("yarn", 2);
  const auto engine = Engine::create(model.config(), model.weights(), stress_options()).value();
  Counts counts;
  hammer(*engine, model, num_requests(), counts, 1);
  const EngineStats stats = engine->stats();
  EXPECT_GT(counts.ended, 0);
  EXPECT_GT(counts.cancelled, 0);
  EXPECT_GT(counts.dropped, 0);
  EXPECT_EQ(stats.blocks_in_use, 0);
  EXPECT_EQ(stats.blocks_cached + stats.blocks_free, stats.blocks_total);
  EXPECT_EQ(stats.running_sequences + stats.waiting_sequences + stats.queued_requests, 0);
  std::printf("%ld requests, %ld refused, %ld outputs cancelled, %ld streams dropped, %ld preemptions\n",
              static_cast<long>(stats.requests), counts.refused.load(), counts.cancelled.load(),
              counts.dropped.load(), static_cast<long>(stats.preemptions));
}

#ifdef SPARROW_COUNT_ALLOCATIONS
TEST(EngineStress, MemoryDoesNotGrowWithTheNumberOfRequests) {
  const test::EngineModel model("yarn", 2);
  const auto engine = Engine::create(model.config(), model.weights(), stress_options()).value();
  Counts counts;
  const auto run = [&](int count, uint64_t seed) {
    hammer(*engine, model, count, counts, seed);
    return std::pair(bytes_held.load(), blocks_held.load());
  };
  const auto [warm_bytes, warm_blocks] = run(1000, 1);  // buffers find their size
  const auto [bytes, blocks] = run(num_requests(), 2);
  std::printf("%ld bytes in %ld pieces held after 1000 requests, %ld bytes in %ld pieces after %d more\n",
              warm_bytes, warm_blocks, bytes, blocks, num_requests());
  // One piece for a fortieth of the requests would be too much. What stays depends a little on who came last,
  // and buffers may stretch for a larger batch: pieces differ by 14 from one count to the next, as a rule.
  EXPECT_LT(blocks - warm_blocks, 100);
  EXPECT_LT(bytes - warm_bytes, 256 * 1024);
}
#endif

}  // namespace
}  // namespace sparrow
