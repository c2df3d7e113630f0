// SPDX-License-Identifier: Apache-2.0
// The bytes that consumers read; tests/e2e/kv_events.py reads them with msgspec.
#include "server/events/kv_event_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/events/msgpack_writer.h"

namespace sparrow {
namespace {

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += strf("{:02x}", static_cast<uint8_t>(c));
  return text;
}

template <typename Write>
std::string packed(Write write) {
  MsgpackWriter out;
  write(out);
  return hex(out.take());
}

// From the format's specification.
TEST(MsgpackWriter, TakesTheShortestForm) {
  const auto integer = [](int64_t value) { return packed([&](MsgpackWriter& out) { out.integer(value); }); };
  EXPECT_EQ(integer(0), "00");
  EXPECT_EQ(integer(127), "7f");
  EXPECT_EQ(integer(128), "cc80");
  EXPECT_EQ(integer(255), "ccff");
  EXPECT_EQ(integer(256), "cd0100");
  EXPECT_EQ(integer(65536), "ce00010000");
  EXPECT_EQ(integer(int64_t{1} << 32), "cf0000000100000000");
  EXPECT_EQ(integer(-1), "ff");
  EXPECT_EQ(integer(-32), "e0");
  EXPECT_EQ(integer(-33), "d0df");
  EXPECT_EQ(integer(-129), "d1ff7f");
  EXPECT_EQ(integer(-32769), "d2ffff7fff");
  EXPECT_EQ(integer(INT64_MIN), "d38000000000000000");
  EXPECT_EQ(packed([](MsgpackWriter& out) { out.unsigned_integer(UINT64_MAX); }), "cfffffffffffffffff");
  EXPECT_EQ(packed([](MsgpackWriter& out) { out.number(1.5); }), "cb3ff8000000000000");
  EXPECT_EQ(packed([](MsgpackWriter& out) { out.string("abc"); }), "a3616263");
  EXPECT_EQ(packed([](MsgpackWriter& out) { out.string(std::string(32, 'x')); }).substr(0, 4), "d920");
  EXPECT_EQ(packed([](MsgpackWriter& out) { out.string(std::string(256, 'x')); }).substr(0, 6), "da0100");
  EXPECT_EQ(packed([](MsgpackWriter& out) { out.begin_array(15); }), "9f");
  EXPECT_EQ(packed([](MsgpackWriter& out) { out.begin_array(16); }), "dc0010");
  EXPECT_EQ(packed([](MsgpackWriter& out) { out.begin_array(65536); }), "dd00010000");
  EXPECT_EQ(packed([](MsgpackWriter& out) { out.begin_map(2); }), "82");
  EXPECT_EQ(packed([](MsgpackWriter& out) { out.begin_map(16); }), "de0010");
}

CacheEvent stored_block() {
  CacheEvent event{.kind = CacheEvent::Kind::kStored};
  Digest digest{};
  digest[31] = 5;
  event.digests = {digest};
  event.ids = {1, 2};
  event.extras.resize(1);
  return event;
}

TEST(KvEventFormat, AnEventIsAMapOrAnArray) {
  const std::vector<CacheEvent> events = {stored_block(), {.kind = CacheEvent::Kind::kCleared}};
  EXPECT_EQ(hex(encode_kv_events(events, 1.5, 3, KvEventFormat::kArray)),
            "93cb3ff8000000000000"
            "92"
            "98ab426c6f636b53746f726564"            // "BlockStored"
            "9105c092010202c0a3475055c0"            // [5], nil, [1, 2], 2, nil, "GPU", nil
            "91b0416c6c426c6f636b73436c6561726564"  // ["AllBlocksCleared"]
            "03");
  const std::string map = encode_kv_events(events, 1.5, 3, KvEventFormat::kMap);
  EXPECT_EQ(hex(map).substr(0, 24), "93cb3ff80000000000009288");
  for (const char* name : {"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id",
                           "medium", "lora_name"})
    EXPECT_THAT(map, testing::HasSubstr(name));
  EXPECT_THAT(map, testing::Not(testing::HasSubstr("extra_keys")));
}

TEST(KvEventFormat, SaysWhatElseIsInABlock) {
  CacheEvent event = stored_block();
  event.extras[0] = {.salt = "tenant", .media = {{.begin = -3, .end = 9, .digest = {0xab}}}};
  const std::string map = encode_kv_events({&event, 1}, 0, 0, KvEventFormat::kMap);
  const std::string digest = "ab" + std::string(62, '0');
  // extra_keys: [[[digest, -3], "tenant"]]
  EXPECT_THAT(map, testing::HasSubstr("extra_keys\x91\x92\x92\xd9\x40" + digest + "\xfd\xa6tenant"));
  EXPECT_EQ(num_kv_events({&event, 1}), 1);
}

TEST(KvEventOptions, AreVllmsAndRefuseWhatTheyDoNotKnow) {
  const auto options = parse_kv_event_options(
      R"({"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:6000",
          "replay_endpoint": "tcp://127.0.0.1:7000", "buffer_steps": 5, "hwm": 6, "max_queue_size": 7,
          "topic": "kv@pod", "format": "array"})");
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_TRUE(options->enabled);
  EXPECT_EQ(options->endpoint.text(), "tcp://*:6000");
  EXPECT_FALSE(options->endpoint.connect);
  EXPECT_EQ(options->replay_endpoint->text(), "tcp://127.0.0.1:7000");
  EXPECT_FALSE(options->replay_endpoint->connect);
  EXPECT_EQ(options->topic, "kv@pod");
  EXPECT_EQ(options->format, KvEventFormat::kArray);
  EXPECT_FALSE(parse_kv_event_options("{}")->enabled);
  EXPECT_FALSE(parse_kv_event_options(R"({"enable_kv_cache_events": true, "publisher": "null"})")->enabled);
  EXPECT_TRUE(parse_kv_event_options(R"({"endpoint": "tcp://router:5557"})")->endpoint.connect);
  EXPECT_EQ(parse_kv_event_options(R"({"endpoint": "tcp://[::1]:5"})")->endpoint.text(), "tcp://[::1]:5");
  for (const char* bad :
       {"[]", "x", R"({"end_point": "tcp://*:1"})", R"({"endpoint": "ipc:///tmp/x"})",
        R"({"endpoint": "tcp://*:65536"})", R"({"endpoint": "tcp://5557"})", R"({"endpoint": "tcp://:5557"})",
        R"({"hwm": 0})", R"({"format": "json"})", R"({"publisher": "kafka"})"}) {
    const auto refused = parse_kv_event_options(bad);
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_THAT(refused.error().message, testing::HasSubstr("--kv-events-config")) << bad;
  }
}

}  // namespace
}  // namespace sparrow
