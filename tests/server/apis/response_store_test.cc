// SPDX-License-Identifier: Apache-2.0
#include "server/responses/store.h"

#include <gtest/gtest.h>

#include "base/strf.h"

namespace sparrow {
namespace {

using std::chrono::seconds;

std::shared_ptr<const StoredResponse> response(const std::string& id, size_t bytes = 10) {
  return std::make_shared<StoredResponse>(StoredResponse{.id = id, .body = std::string(bytes, 'x')});
}

TEST(ResponseStore, AResponseIsThereForItsOwnKeyOnly) {
  ResponseStore store({});
  store.add("a", response("resp_1"));
  ASSERT_TRUE(store.find("a", "resp_1"));
  EXPECT_FALSE(store.find("b", "resp_1"));
  EXPECT_FALSE(store.remove("b", "resp_1"));
  EXPECT_TRUE(store.remove("a", "resp_1"));
  EXPECT_FALSE(store.find("a", "resp_1"));
  EXPECT_FALSE(store.remove("a", "resp_1"));
  EXPECT_EQ(store.bytes(), 0);
}

TEST(ResponseStore, TheOldestOfAKeyMakeRoom) {
  ResponseStore store({.max_responses = 3});
  store.add("b", response("other"));
  for (int i = 0; i < 5; ++i) store.add("a", response(strf("resp_{}", i)));
  EXPECT_EQ(store.size(), 4u);
  EXPECT_FALSE(store.find("a", "resp_1"));
  EXPECT_TRUE(store.find("a", "resp_2"));
  EXPECT_TRUE(store.find("b", "other")) << "it is another key's";
}

TEST(ResponseStore, MemoryIsBounded) {
  ResponseStore store({.max_bytes = 10'000});
  for (int i = 0; i < 50; ++i) {
    store.add("a", response(strf("resp_{}", i), 1000));
    EXPECT_LE(store.bytes(), 10'000);
    EXPECT_TRUE(store.find("a", strf("resp_{}", i)));
  }
  store.add("a", response("huge", 20'000));
  EXPECT_FALSE(store.find("a", "huge"));
  EXPECT_TRUE(store.find("a", "resp_49")) << "nobody makes room for what cannot be stored";
}

TEST(ResponseStore, WhoStoresMostMakesRoom) {
  ResponseStore store({.max_bytes = 10'000});
  store.add("b", response("other", 1000));
  for (int i = 0; i < 50; ++i) store.add("a", response(strf("resp_{}", i), 1000));
  EXPECT_TRUE(store.find("b", "other")) << "it is the oldest of all, and its key holds little";
  EXPECT_FALSE(store.find("a", "resp_0"));
  EXPECT_TRUE(store.find("a", "resp_49"));
}

TEST(ResponseStore, ResponsesAreForgotten) {
  ResponseStore::Clock::time_point now{};
  ResponseStore store({.expiry = seconds(60)}, [&now] { return now; });
  store.add("a", response("resp_1"));
  now += seconds(40);
  store.add("a", response("resp_2"));
  now += seconds(30);
  EXPECT_FALSE(store.find("a", "resp_1"));
  EXPECT_TRUE(store.find("a", "resp_2"));
  now += seconds(60);
  EXPECT_FALSE(store.find("a", "resp_2"));
  EXPECT_EQ(store.bytes(), 0);
}

TEST(ResponseStore, OneOfTheSameIdIsReplaced) {
  ResponseStore store({});
  store.add("a", response("resp_1", 10));
  store.add("a", response("resp_1", 20));
  EXPECT_EQ(store.find("a", "resp_1")->body.size(), 20u);
  EXPECT_EQ(store.size(), 1u);
}

TEST(ResponseStore, ALimitOfNothingStoresNothing) {
  ResponseStore store({.max_bytes = 0});
  EXPECT_FALSE(store.enabled());
  store.add("a", response("resp_1"));
  EXPECT_EQ(store.size(), 0u);
}

}  // namespace
}  // namespace sparrow
