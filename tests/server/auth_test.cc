// SPDX-License-Identifier: Apache-2.0
#include "server/auth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <thread>

#include "support/temp_dir.h"

namespace sparrow::test {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string write_file(const TempDir& dir, const std::string& text) {
  const std::string path = (dir.path() / "keys").string();
  std::ofstream(path) << text;
  return path;
}

std::shared_ptr<const ApiKey> ask(const ApiKeys& keys, const std::string& authorization) {
  return keys.authenticate(&authorization);
}

TEST(ApiKeys, WithoutKeysEverybodyIsAnonymous) {
  const ApiKeys keys;
  EXPECT_TRUE(keys.empty());
  ASSERT_NE(keys.authenticate(nullptr), nullptr);
  EXPECT_EQ(keys.authenticate(nullptr)->id, "");
  EXPECT_EQ(ask(keys, "Bearer whatever"), keys.authenticate(nullptr));
}

TEST(ApiKeys, TakesTheRightKeyAndNoOther) {
  ApiKeys keys;
  ASSERT_TRUE(keys.add("sk-first").ok());
  ASSERT_TRUE(keys.add("sk-second").ok());
  const auto first = ask(keys, "Bearer sk-first");
  const auto second = ask(keys, "bearer sk-second");
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_NE(first->id, second->id);
  for (const char* wrong : {"", "Bearer", "Bearer ", "sk-first", "Basic sk-first", "Bearer sk-firs",
                            "Bearer sk-firstx", "Bearer sk-first ", "Bearer  sk-first", "Bearer SK-FIRST"})
    EXPECT_EQ(ask(keys, wrong), nullptr) << wrong;
  EXPECT_EQ(keys.authenticate(nullptr), nullptr);
}

TEST(ApiKeys, IdFollowsFromTheKeyAloneAndDoesNotShowIt) {
  ApiKeys before, after;
  ASSERT_TRUE(before.add("sk-1").ok());
  ASSERT_TRUE(after.add("sk-2").ok());
  ASSERT_TRUE(after.add("sk-1").ok());
  const auto key = ask(before, "Bearer sk-1");
  EXPECT_EQ(key->id, ask(after, "Bearer sk-1")->id);
  EXPECT_EQ(key->id.size(), 32u);
  EXPECT_EQ(key->name, "key-" + key->id.substr(0, 8));
}

TEST(ApiKeys, ReadsAFileWithCommentsNamesAndLimits) {
  const TempDir dir;
  ApiKeys keys;
  ASSERT_TRUE(
      keys.add_file(write_file(dir,
                               "# our keys\n\n  sk-a\nsk-b name=bob requests=3 tokens=5000 # limited\r\n"
                               "sk-c tokens=7\n"),
                    {.max_requests = 9})
          .ok());
  EXPECT_EQ(keys.size(), 3u);
  EXPECT_EQ(ask(keys, "Bearer sk-a")->limits.max_requests, 9);
  const auto bob = ask(keys, "Bearer sk-b");
  EXPECT_EQ(bob->name, "bob");
  EXPECT_EQ(bob->limits.max_requests, 3);
  EXPECT_EQ(bob->limits.max_tokens, 5000);
  EXPECT_EQ(ask(keys, "Bearer sk-c")->limits.max_tokens, 7);
}

TEST(ApiKeys, APriorityRangeIsForWhomTheFileNames) {
  const TempDir dir;
  ApiKeys keys;
  ASSERT_TRUE(keys.add_file(write_file(dir, "sk-a\nsk-b priority=-10..10\nsk-c priority=0..5\n")).ok());
  const auto nearest = [&](const char* key, int priority) {
    return ask(keys, key)->limits.priorities.nearest(priority);
  };
  EXPECT_EQ(nearest("Bearer sk-a", -1'000'000), 0) << "nobody has a say by default";
  EXPECT_EQ(nearest("Bearer sk-a", 7), 0);
  EXPECT_EQ(nearest("Bearer sk-b", -1'000'000), -10);
  EXPECT_EQ(nearest("Bearer sk-b", 3), 3);
  EXPECT_EQ(nearest("Bearer sk-c", -1), 0);
  EXPECT_EQ(nearest("Bearer sk-c", 9), 5);
  for (const char* wrong :
       {"", "1", "..", "1..", "..1", "2..1", "1...2", "a..b", "0..99999999999", "-1.5..2", "1..2 "})
    EXPECT_FALSE(PriorityRange::parse(wrong)) << wrong;
  EXPECT_FALSE(ApiKeys().add_file(write_file(dir, "sk-a priority=5\n")).ok());
}

TEST(ApiKeys, SaysWhatIsWrongWithAFileWithoutShowingAKey) {
  const TempDir dir;
  const auto error = [&](const std::string& text) {
    ApiKeys keys;
    const Status status = keys.add_file(write_file(dir, text));
    EXPECT_FALSE(status.ok()) << text;
    EXPECT_THAT(status.error().message, Not(HasSubstr("sk-secret")));
    return status.ok() ? "" : status.error().message;
  };
  EXPECT_THAT(error("# nothing\n"), HasSubstr("holds no API key"));
  EXPECT_THAT(error("sk-a\nsk-secret limit=3\n"), HasSubstr("keys:2: after the key only"));
  EXPECT_THAT(error("sk-secret requests=many\n"), HasSubstr("keys:1"));
  EXPECT_THAT(error("sk-secret requests=0\n"), HasSubstr("keys:1"));
  EXPECT_THAT(error("sk-secret requests=-1\n"), HasSubstr("keys:1"));
  EXPECT_THAT(error("sk-secret\nsk-secret\n"), HasSubstr("keys:2: the same API key is given twice"));
  EXPECT_THAT(error("sk-secret\x01\n"), HasSubstr("printable"));
  EXPECT_THAT(error(std::string(513, 'k') + "\n"), HasSubstr("512"));
  ApiKeys keys;
  EXPECT_THAT(keys.add_file("/no/such/file").error().message, HasSubstr("/no/such/file"));
}

TEST(ApiKeys, ReadsAListAsAnEnvironmentVariableHoldsIt) {
  ApiKeys keys;
  ASSERT_TRUE(keys.add_list("sk-a, sk-b\nsk-c", "SPARROW_API_KEY").ok());
  EXPECT_EQ(keys.size(), 3u);
  EXPECT_NE(ask(keys, "Bearer sk-b"), nullptr);
  EXPECT_THAT(keys.add_list(" , ", "SPARROW_API_KEY").error().message, HasSubstr("SPARROW_API_KEY holds no"));
}

// Thread time of many questions; the median of several rounds, as other programs share the core's caches.
double seconds_per_question(const ApiKeys& keys, const std::string& authorization) {
  std::vector<double> rounds;
  for (int round = 0; round < 9; ++round) {
    timespec start{}, end{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    for (int i = 0; i < 200; ++i) ask(keys, authorization);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    rounds.push_back(static_cast<double>(end.tv_sec - start.tv_sec) +
                     1e-9 * static_cast<double>(end.tv_nsec - start.tv_nsec));
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2] / 200;
}

TEST(ApiKeys, TakeTheSameTimeWhicheverKeyItIs) {
  ApiKeys keys;
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(keys.add("sk-" + std::to_string(i)).ok());
  const double first = seconds_per_question(keys, "Bearer sk-0");
  const double last = seconds_per_question(keys, "Bearer sk-999");
  const double wrong = seconds_per_question(keys, "Bearer sk-wrong");
  const auto [fastest, slowest] = std::minmax({first, last, wrong});
  EXPECT_LT(slowest, 2 * fastest) << first << " " << last << " "
                                  << wrong;  // a search that stops early: 100 times
}

TEST(KeyTicket, HoldsAPlaceUntilItIsGone) {
  ApiKeys keys;
  ASSERT_TRUE(keys.add("sk-a", "", {.max_requests = 2}).ok());
  const auto key = ask(keys, "Bearer sk-a");
  std::optional<KeyTicket> first = KeyTicket::take(key);
  {
    const std::optional<KeyTicket> second = KeyTicket::take(key);
    EXPECT_TRUE(second);
    EXPECT_FALSE(KeyTicket::take(key));
    EXPECT_FALSE(KeyTicket::take(key));  // a refusal holds nothing
  }
  EXPECT_TRUE(KeyTicket::take(key));
  EXPECT_TRUE(first->add_tokens(10));
  KeyTicket moved = std::move(*first);
  EXPECT_EQ(key->usage->requests, 1);
  EXPECT_EQ(key->usage->tokens, 10);
  moved.release();
  moved.release();
  EXPECT_EQ(key->usage->requests, 0);
  EXPECT_EQ(key->usage->tokens, 0);
}

TEST(KeyTicket, LimitsTokensInFlightButNeverTheOnlyRequest) {
  ApiKeys keys;
  ASSERT_TRUE(keys.add("sk-a", "", {.max_tokens = 100}).ok());
  const auto key = ask(keys, "Bearer sk-a");
  const auto unprepared = KeyTicket::take(key);         // its tokens are not known yet
  EXPECT_TRUE(KeyTicket::take(key)->add_tokens(1000));  // alone, and gone at once
  auto first = KeyTicket::take(key), second = KeyTicket::take(key);
  EXPECT_TRUE(first->add_tokens(60));
  EXPECT_TRUE(second->add_tokens(40));
  EXPECT_FALSE(KeyTicket::take(key)->add_tokens(1));
}

TEST(KeyTicket, ManyThreadsNeverHoldMoreThanTheLimit) {
  ApiKeys keys;
  ASSERT_TRUE(keys.add("sk-a", "", {.max_requests = 3}).ok());
  const auto key = ask(keys, "Bearer sk-a");
  std::atomic<int> inside{0}, most{0}, admitted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        std::optional<KeyTicket> ticket = KeyTicket::take(key);
        if (!ticket) continue;
        ticket->add_tokens(5);
        ++admitted;
        const int now = ++inside;
        int seen = most;
        while (now > seen && !most.compare_exchange_weak(seen, now)) continue;
        --inside;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most, 3);
  EXPECT_GT(admitted, 0);
  EXPECT_EQ(key->usage->requests, 0);
  EXPECT_EQ(key->usage->tokens, 0);
}

TEST(ApiKeys, AreReplacedWhileTicketsAreOut) {
  ApiKeys keys;
  ASSERT_TRUE(keys.add("sk-stays", "", {.max_requests = 1}).ok());
  ASSERT_TRUE(keys.add("sk-goes").ok());
  const auto stays = ask(keys, "Bearer sk-stays"), goes = ask(keys, "Bearer sk-goes");
  std::optional<KeyTicket> held = KeyTicket::take(stays), orphan = KeyTicket::take(goes);
  ApiKeys fresh;
  ASSERT_TRUE(fresh.add("sk-new").ok());
  ASSERT_TRUE(fresh.add("sk-stays", "renamed", {.max_requests = 2}).ok());
  keys.replace_with(fresh);
  EXPECT_NE(ask(keys, "Bearer sk-new"), nullptr);
  EXPECT_EQ(ask(keys, "Bearer sk-goes"), nullptr);
  const auto now = ask(keys, "Bearer sk-stays");
  EXPECT_EQ(now->id, stays->id);  // the cache's salt
  EXPECT_EQ(now->name, "renamed");
  EXPECT_EQ(now->usage->requests, 1);
  std::optional<KeyTicket> second = KeyTicket::take(now);
  EXPECT_TRUE(second);  // the new limit
  EXPECT_FALSE(KeyTicket::take(now));
  held.reset();
  orphan.reset();
  EXPECT_EQ(now->usage->requests, 1);
}

TEST(ApiKeys, TakeNoPipeForAFile) {
  const TempDir dir;
  const std::string pipe = dir.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ApiKeys keys;
  EXPECT_THAT(keys.add_file(pipe).error().message, HasSubstr("is not a regular file"));
}

}  // namespace
}  // namespace sparrow::test
