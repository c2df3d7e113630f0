// SPDX-License-Identifier: Apache-2.0
// Many jobs on a few workers: bad ones cost themselves, and nobody else.
#include "media/sandbox/media_workers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "media/sandbox/confine.h"

namespace sparrow {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr auto kForever = 600'000ms;

MediaBytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

MediaWorkersOptions test_options(int workers) {
  return {.command = {.program = SPARROW_MEDIA_TEST_WORKER},
          .workers = workers,
          .max_input_bytes = 1 << 20,
          .max_output_bytes = 1 << 20,
          .memory_bytes = size_t{256} << 20,
          .start_time = kForever};
}

std::unique_ptr<MediaWorkers> start(const MediaWorkersOptions& options) {
  auto workers = MediaWorkers::start(options);
  EXPECT_TRUE(workers.ok()) << workers.error().message;
  return std::move(workers).value();
}

// What came of each job, by its place in the order of submission.
class Outcomes {
 public:
  MediaJob job(const std::string& owner, std::string_view deed, std::string_view input = "",
               std::chrono::milliseconds limit = kForever) {
    const std::lock_guard lock(mutex_);
    const size_t place = results_.size();
    results_.emplace_back();
    return {.owner = owner,
            .options = bytes_of(deed),
            .bytes = bytes_of(input),
            .max_output_bytes = 1 << 20,
            .time_limit = limit,
            .done = [this, place](Result<MediaBytes> result) { take(place, std::move(result)); }};
  }
  const std::string& of(size_t place) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return results_[place].has_value(); });
    return *results_[place];
  }
  bool is_done(size_t place) {
    const std::lock_guard lock(mutex_);
    return results_[place].has_value();
  }
  std::vector<size_t> order() {
    const std::lock_guard lock(mutex_);
    return order_;
  }

 private:
  void take(size_t place, Result<MediaBytes> result) {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(results_[place].has_value()) << "done twice";
    results_[place] = result.ok() ? std::string(reinterpret_cast<const char*>(result->data()), result->size())
                                  : "error: " + result.error().message;
    order_.push_back(place);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::optional<std::string>> results_;
  std::vector<size_t> order_;
};

int open_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

int shared_mappings() {
  std::ifstream file("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(file, line);) count += line.find("memfd:sparrow-media") != line.npos;
  return count;
}

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

TEST(MediaWorkers, HealthyJobsFinishBesideEveryKindOfBadOne) {
  Outcomes outcomes;
  std::vector<std::string> deeds{"segv",     "abort",       "exit",       "socket", "execve",
                                 "too long", "another job", "no message", "flood"};
  if (kConfinedStrictly) deeds.insert(deeds.end(), {"open", "memory", "fork", "stack"});
  const auto workers = start(test_options(3));
  for (const std::string& deed : deeds) {
    ASSERT_TRUE(workers->submit(outcomes.job("bad", deed)).ok());
    ASSERT_TRUE(workers->submit(outcomes.job("good", "reverse", deed)).ok());
  }
  for (size_t i = 0; i < deeds.size(); ++i) {
    EXPECT_THAT(outcomes.of(2 * i), HasSubstr("error: ")) << deeds[i];
    EXPECT_EQ(outcomes.of(2 * i + 1), std::string(deeds[i].rbegin(), deeds[i].rend()));
  }
}

TEST(MediaWorkers, AJobThatHangsEndsAtItsDeadline) {
  Outcomes outcomes;
  const auto workers = start(test_options(1));
  ASSERT_TRUE(workers->submit(outcomes.job("a", "spin", "", 50ms)).ok());
  ASSERT_TRUE(workers->submit(outcomes.job("a", "sleep", "", 50ms)).ok());
  ASSERT_TRUE(workers->submit(outcomes.job("a", "reverse", "abc")).ok());
  EXPECT_EQ(outcomes.of(0), "error: decoding took longer than 50 ms");
  EXPECT_EQ(outcomes.of(1), "error: decoding took longer than 50 ms");
  EXPECT_EQ(outcomes.of(2), "cba");
  EXPECT_EQ(workers->counts().timed_out, 2);
}

TEST(MediaWorkers, JobsOfOneOwnerRunAtTheSameTime) {
  Outcomes outcomes;
  const auto workers = start(test_options(3));
  ASSERT_TRUE(workers->submit(outcomes.job("a", "sleep")).ok());
  ASSERT_TRUE(workers->submit(outcomes.job("a", "sleep")).ok());
  ASSERT_TRUE(workers->submit(outcomes.job("a", "reverse", "abc")).ok());
  EXPECT_EQ(outcomes.of(2), "cba");
}

TEST(MediaWorkers, AThousandCrashesLeaveNothingBehind) {
  const int crashes = kConfinedStrictly ? 1000 : 30;  // a sanitizer takes long to start
  const int descriptors = open_descriptors();
  {
    Outcomes outcomes;
    const auto workers = start(test_options(2));
    for (int i = 0; i < crashes; ++i) ASSERT_TRUE(workers->submit(outcomes.job("a", "segv")).ok());
    for (int i = 0; i < crashes; ++i)
      EXPECT_THAT(outcomes.of(static_cast<size_t>(i)), HasSubstr("error: the decoder "));
    EXPECT_EQ(workers->counts().broken, crashes);
    ASSERT_TRUE(workers->submit(outcomes.job("a", "reverse", "abc")).ok());
    EXPECT_EQ(outcomes.of(static_cast<size_t>(crashes)), "cba");
    EXPECT_LE(shared_mappings(), 2);
  }
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(shared_mappings(), 0);
  EXPECT_FALSE(has_children());
}

TEST(MediaWorkers, AWorkerNeverSeesBytesOfTwoOwners) {
  Outcomes outcomes;
  const auto workers = start(test_options(1));
  size_t place = 0;
  for (const auto& [owner, started] : std::vector<std::pair<std::string, int>>{
           {"a", 1}, {"a", 1}, {"b", 2}, {"b", 2}, {"a", 3}, {"", 4}, {"", 4}}) {
    ASSERT_TRUE(workers->submit(outcomes.job(owner, "reverse", "abc")).ok());
    EXPECT_EQ(outcomes.of(place++), "cba");
    EXPECT_EQ(workers->counts().started, started) << owner;
  }
}

TEST(MediaWorkers, CancelEndsWhatRunsAndWhatWaits) {
  Outcomes outcomes;
  const auto workers = start(test_options(1));
  const auto running = workers->submit(outcomes.job("a", "sleep"));
  const auto waiting = workers->submit(outcomes.job("a", "reverse", "abc"));
  const auto last = workers->submit(outcomes.job("a", "reverse", "abc"));
  ASSERT_TRUE(running.ok() && waiting.ok() && last.ok());
  workers->cancel(waiting.value());
  EXPECT_EQ(outcomes.of(1), "error: cancelled");
  EXPECT_FALSE(outcomes.is_done(0));
  workers->cancel(running.value());
  EXPECT_EQ(outcomes.of(0), "error: cancelled");
  EXPECT_EQ(outcomes.of(2), "cba");
  workers->cancel(last.value());  // too late: nothing happens
  ASSERT_TRUE(workers->submit(outcomes.job("a", "reverse", "abc")).ok());
  EXPECT_EQ(outcomes.of(3), "cba");
}

TEST(MediaWorkers, FullQueuesRefuseAndRoomComesBack) {
  Outcomes outcomes;
  MediaWorkersOptions options = test_options(1);
  options.all = {.items = 3, .bytes = 1000};
  options.of_owner = {.items = 2, .bytes = 600};
  const auto workers = start(options);
  const auto running = workers->submit(outcomes.job("a", "sleep"));
  ASSERT_TRUE(running.ok());
  EXPECT_FALSE(workers->submit(outcomes.job("a", "reverse", std::string(600, 'x'))).ok());
  ASSERT_TRUE(workers->submit(outcomes.job("a", "reverse", "abc")).ok());
  const auto third = workers->submit(outcomes.job("a", "reverse", "abc"));
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.error().code, Errc::kBusy);
  EXPECT_THAT(third.error().message, HasSubstr("of this key"));
  ASSERT_TRUE(workers->submit(outcomes.job("b", "reverse", "abc")).ok());
  const auto fourth = workers->submit(outcomes.job("c", "reverse", "abc"));
  ASSERT_FALSE(fourth.ok());
  EXPECT_EQ(fourth.error().code, Errc::kBusy);
  while (workers->num_waiting() != 2) std::this_thread::yield();  // until the first one has begun
  workers->cancel(running.value());
  EXPECT_EQ(outcomes.of(2), "cba");
  EXPECT_EQ(outcomes.of(4), "cba");
  EXPECT_TRUE(workers->submit(outcomes.job("c", "reverse", "abc")).ok());
  const auto large = workers->submit(outcomes.job("c", "reverse", std::string(2 << 20, 'x')));
  ASSERT_FALSE(large.ok());
  EXPECT_EQ(large.error().code, Errc::kInvalidArgument);
  MediaJob wide = outcomes.job("c", "reverse", "abc");
  wide.max_output_bytes = 2 << 20;
  EXPECT_EQ(workers->submit(std::move(wide)).error().code, Errc::kInvalidArgument);
}

TEST(MediaWorkers, OwnersTakeTurns) {
  Outcomes outcomes;
  const auto workers = start(test_options(1));
  const auto first = workers->submit(outcomes.job("a", "sleep"));
  ASSERT_TRUE(first.ok());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(workers->submit(outcomes.job("a", "reverse")).ok());
  ASSERT_TRUE(workers->submit(outcomes.job("b", "reverse")).ok());
  workers->cancel(first.value());
  for (size_t i = 0; i < 6; ++i) outcomes.of(i);
  const std::vector<size_t> order = outcomes.order();
  EXPECT_LE(std::ranges::find(order, size_t{5}) - order.begin(), 2)
      << "b waited for all that a had asked before";
}

TEST(MediaWorkers, LargeJobsOfOneOwnerLeaveAWorkerToOthers) {
  Outcomes outcomes;
  const auto job = [&](const std::string& owner, std::string_view deed, uint64_t cost) {
    MediaJob made = outcomes.job(owner, deed, "abc");
    made.cost = cost;
    return made;
  };
  for (const int count : {1, 3}) {
    MediaWorkersOptions options = test_options(count);
    options.large_cost = 10;
    const auto workers = start(options);
    const size_t first = outcomes.order().size();
    ASSERT_TRUE(workers->submit(job("a", "reverse", 11)).ok());
    EXPECT_EQ(outcomes.of(first), "cba");
    if (count == 1) continue;
    for (int i = 0; i < count; ++i) ASSERT_TRUE(workers->submit(job("a", "sleep", 11)).ok());
    for (const char* other : {"b", "c"}) {
      ASSERT_TRUE(workers->submit(job(other, "reverse", 11)).ok());
      EXPECT_EQ(outcomes.of(outcomes.order().size() + count), "cba");
    }
    EXPECT_EQ(workers->num_waiting(), 1);
    // A small one of the same owner does not wait behind them either.
    ASSERT_TRUE(workers->submit(job("a", "reverse", 1)).ok());
    EXPECT_EQ(outcomes.of(outcomes.order().size() + count), "cba");
    EXPECT_EQ(workers->num_waiting(), 1);
  }
}

TEST(MediaWorkers, EndWithWhatStillRunsAndWaits) {
  Outcomes outcomes;
  {
    const auto workers = start(test_options(1));
    ASSERT_TRUE(workers->submit(outcomes.job("a", "sleep")).ok());
    ASSERT_TRUE(workers->submit(outcomes.job("a", "reverse")).ok());
  }
  EXPECT_EQ(outcomes.of(0), "error: the server is shutting down");
  EXPECT_EQ(outcomes.of(1), "error: the server is shutting down");
  EXPECT_FALSE(has_children());
}

TEST(MediaWorkers, SayWhenNoneCanBeStarted) {
  MediaWorkersOptions options = test_options(1);
  options.command.arguments = {"does not start"};
  const auto ended = MediaWorkers::start(options);
  ASSERT_FALSE(ended.ok());
  EXPECT_THAT(ended.error().message, HasSubstr("the decoder ended by itself"));
  options.command.program = "/no/such/program";
  EXPECT_FALSE(MediaWorkers::start(options).ok());
  options.workers = 0;
  EXPECT_EQ(MediaWorkers::start(options).error().field, "media-workers");
}

}  // namespace
}  // namespace sparrow
