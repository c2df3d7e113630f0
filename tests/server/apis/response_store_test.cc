// SPDX-License-Identifier: Apache-2.0
#include "server/responses/store.h"

#include <gtest/gtest.h>

#include <optional>

#include "base/strf.h"

namespace sparrow {
namespace {

using std::chrono::seconds;

std::shared_ptr<const StoredResponse> response(const std::string& id, size_t bytes = 10) {
  return std::make_shared<StoredResponse>(StoredResponse{.id = id, .body = std::string(bytes, 'x')});
}

std::shared_ptr<const StoredResponse> running(const std::string& id, size_t bytes = 10) {
  return std::make_shared<StoredResponse>(
      StoredResponse{.id = id, .body = std::string(bytes, 'x'), .cancel = [] {}});
}

bool add(ResponseStore& store, const std::string& key, std::shared_ptr<const StoredResponse> response) {
  return store.add(key, std::move(response)).ok();
}

// nullopt: it is stored.
std::optional<Errc> refusal(ResponseStore& store, const std::string& key,
                            std::shared_ptr<const StoredResponse> response) {
  const Status status = store.add(key, std::move(response));
  return status.ok() ? std::nullopt : std::optional(status.error().code);
}

TEST(ResponseStore, AResponseIsThereForItsOwnKeyOnly) {
  ResponseStore store({});
  EXPECT_TRUE(add(store, "a", response("resp_1")));
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
  EXPECT_TRUE(add(store, "b", response("other")));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(add(store, "a", response(strf("resp_{}", i))));
  EXPECT_EQ(store.size(), 4u);
  EXPECT_FALSE(store.find("a", "resp_1"));
  EXPECT_TRUE(store.find("a", "resp_2"));
  EXPECT_TRUE(store.find("b", "other")) << "it is another key's";
}

TEST(ResponseStore, MemoryIsBounded) {
  ResponseStore store({.max_bytes = 10'000});
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(add(store, "a", response(strf("resp_{}", i), 1000)));
    EXPECT_LE(store.bytes(), 10'000);
    EXPECT_TRUE(store.find("a", strf("resp_{}", i)));
  }
  EXPECT_EQ(refusal(store, "a", response("huge", 20'000)), Errc::kInvalidArgument);
  EXPECT_FALSE(store.find("a", "huge"));
  EXPECT_TRUE(store.find("a", "resp_49")) << "nobody makes room for what cannot be stored";
}

TEST(ResponseStore, WhoStoresMostMakesRoom) {
  ResponseStore store({.max_bytes = 10'000});
  EXPECT_TRUE(add(store, "b", response("other", 1000)));
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(add(store, "a", response(strf("resp_{}", i), 1000)));
  EXPECT_TRUE(store.find("b", "other")) << "it is the oldest of all, and its key holds little";
  EXPECT_FALSE(store.find("a", "resp_0"));
  EXPECT_TRUE(store.find("a", "resp_49"));
}

TEST(ResponseStore, ResponsesAreForgotten) {
  ResponseStore::Clock::time_point now{};
  ResponseStore store({.expiry = seconds(60)}, [&now] { return now; });
  EXPECT_TRUE(add(store, "a", response("resp_1")));
  now += seconds(40);
  EXPECT_TRUE(add(store, "a", response("resp_2")));
  now += seconds(30);
  EXPECT_FALSE(store.find("a", "resp_1"));
  EXPECT_TRUE(store.find("a", "resp_2"));
  now += seconds(60);
  EXPECT_FALSE(store.find("a", "resp_2"));
  EXPECT_EQ(store.bytes(), 0);
}

TEST(ResponseStore, OneOfTheSameIdIsReplaced) {
  ResponseStore store({});
  EXPECT_TRUE(add(store, "a", response("resp_1", 10)));
  EXPECT_TRUE(add(store, "a", response("resp_1", 20)));
  EXPECT_EQ(store.find("a", "resp_1")->body.size(), 20u);
  EXPECT_EQ(store.size(), 1u);
}

// A client was told to come back for them.
TEST(ResponseStore, WhatIsBeingMadeMakesNoRoom) {
  ResponseStore store({.max_bytes = 10'000});
  EXPECT_TRUE(add(store, "a", running("running", 5000)));
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(add(store, "a", response(strf("resp_{}", i), 1000)));
  EXPECT_TRUE(store.find("a", "running"));
  EXPECT_EQ(refusal(store, "a", running("next", 5000)), Errc::kBusy);
  EXPECT_TRUE(store.find("a", "resp_9")) << "nobody makes room for what cannot be stored";
  EXPECT_TRUE(add(store, "a", response("running", 5000)));
  EXPECT_TRUE(add(store, "a", running("next", 5000))) << "it has ended and makes room";
  EXPECT_FALSE(store.find("a", "running"));
}

TEST(ResponseStore, WhatIsBeingMadeIsOfWhatItsKeyHolds) {
  ResponseStore store({.max_bytes = 10'000});
  EXPECT_TRUE(add(store, "a", running("running", 5000)));
  EXPECT_TRUE(add(store, "b", response("other", 2500)));
  EXPECT_TRUE(add(store, "a", response("resp_1", 500)));
  EXPECT_TRUE(add(store, "a", response("resp_2", 500)));
  EXPECT_FALSE(store.find("a", "resp_1"));
  EXPECT_TRUE(store.find("b", "other")) << "its key holds less";
}

TEST(ResponseStore, WhatIsBeingMadeIsOfTheKeysNumber) {
  ResponseStore store({.max_responses = 2});
  EXPECT_TRUE(add(store, "a", running("running")));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(add(store, "a", response(strf("resp_{}", i))));
  EXPECT_EQ(store.size(), 2u);
  EXPECT_TRUE(add(store, "a", running("next")));
  EXPECT_EQ(refusal(store, "a", response("resp_3")), Errc::kBusy);
  EXPECT_TRUE(add(store, "b", response("other")));
  EXPECT_TRUE(store.find("a", "running"));
}

TEST(ResponseStore, WhatIsBeingMadeDoesNotExpire) {
  ResponseStore::Clock::time_point now{};
  ResponseStore store({.expiry = seconds(60)}, [&now] { return now; });
  EXPECT_TRUE(add(store, "a", running("running")));
  EXPECT_TRUE(add(store, "a", response("resp_1")));
  now += seconds(70);
  EXPECT_TRUE(store.find("a", "running"));
  EXPECT_FALSE(store.find("a", "resp_1"));
  EXPECT_TRUE(add(store, "a", response("running")));
  now += seconds(50);
  EXPECT_TRUE(store.find("a", "running")) << "its time begins with its end";
  now += seconds(20);
  EXPECT_FALSE(store.find("a", "running"));
  EXPECT_EQ(store.bytes(), 0);
}

TEST(ResponseStore, TheEndOfWhatWasBeingMadeIsKept) {
  ResponseStore store({.max_bytes = 10'000});
  EXPECT_TRUE(add(store, "a", response("resp_1", 1000)));
  EXPECT_TRUE(add(store, "a", running("running", 5000)));
  EXPECT_TRUE(add(store, "a", response("running", 20'000)));
  EXPECT_TRUE(store.find("a", "running"));
  EXPECT_FALSE(store.find("a", "resp_1"));
  EXPECT_TRUE(add(store, "a", response("resp_2", 1000)));
  EXPECT_LE(store.bytes(), 10'000);
}

TEST(ResponseStore, ALimitOfNothingStoresNothing) {
  ResponseStore store({.max_bytes = 0});
  EXPECT_FALSE(store.enabled());
  EXPECT_FALSE(add(store, "a", response("resp_1")));
  EXPECT_EQ(store.size(), 0u);
}

}  // namespace
}  // namespace sparrow
