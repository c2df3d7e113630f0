// SPDX-License-Identifier: Apache-2.0
// Subscribers as bytes on a socket; tests/e2e/kv_events.py is one that libzmq makes.
#include "server/events/kv_event_publisher.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>

#include "server/events/kv_event_format.h"
#include "server/events/kv_mirror.h"
#include "server/events/zmtp.h"
#include "server/metrics.h"
#include "support/server/raw_client.h"

namespace sparrow {
namespace {

using test::RawClient;

// Waits for as long as a busy machine may need.
template <typename Condition>
bool eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + test::kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// The other side of a ZeroMQ socket, written down from the specification.
class Socket {
 public:
  Socket(int port, const std::string& type) : client_(port) {
    std::string properties("\x0bSocket-Type\0\0\0", 15);
    properties += static_cast<char>(type.size()) + type;
    client_.send(zmtp::greeting() + "\x04" + static_cast<char>(6 + properties.size()) + "\x05READY" +
                 properties);
    EXPECT_EQ(take(zmtp::kGreetingBytes).size(), zmtp::kGreetingBytes);
    EXPECT_TRUE(read_frame().starts_with("\x05READY"));
  }

  void subscribe(const std::string& topic) {
    client_.send(std::string(1, '\0') + static_cast<char>(1 + topic.size()) + '\x01' + topic);
  }
  void ask_from(uint64_t sequence) {
    client_.send(std::string("\x01\0\0\x08", 4));
    std::string number;
    for (int shift = 56; shift >= 0; shift -= 8) number += static_cast<char>(sequence >> shift);
    client_.send(number);
  }

  std::string read_frame() {
    const std::string flags = take(1);
    if (flags.empty()) return "closed";
    uint64_t size = 0;
    for (const char c : take((flags[0] & 2) != 0 ? 8 : 1)) size = size << 8 | static_cast<uint8_t>(c);
    return take(size);
  }
  struct Message {
    std::string topic, payload;
    uint64_t sequence = 0;
  };
  Message read_message() {
    Message message{.topic = read_frame()};
    for (const char c : read_frame()) message.sequence = message.sequence << 8 | static_cast<uint8_t>(c);
    message.payload = read_frame();
    return message;
  }
  RawClient& client() { return client_; }

 private:
  // Fewer: the connection has ended.
  std::string take(size_t size) {
    while (in_.size() < size) {
      const std::string more = client_.read_bytes(1);
      if (more.empty()) break;
      in_ += more;
    }
    std::string taken = in_.substr(0, size);
    in_.erase(0, taken.size());
    return taken;
  }

  RawClient client_;
  std::string in_;
};

// A block like no other, after nothing.
CacheEvent stored(int number, int num_blocks = 1) {
  CacheEvent event{.kind = CacheEvent::Kind::kStored};
  for (int i = 0; i < num_blocks; ++i) {
    Digest digest{};
    digest[0] = static_cast<uint8_t>(number);
    digest[1] = static_cast<uint8_t>(number >> 8);
    digest[31] = static_cast<uint8_t>(i);
    event.digests.push_back(digest);
  }
  event.ids.resize(event.digests.size() * 128, 70'000);
  event.extras.resize(event.digests.size());
  return event;
}

struct KvEventPublisherTest : testing::Test {
  KvEventOptions options{.enabled = true,
                         .endpoint = {.host = "*"},
                         .replay_endpoint = KvEndpoint{.host = "127.0.0.1"},
                         .topic = "kv@me"};
  std::unique_ptr<KvEventPublisher> publisher;
  CacheEventSink sink;
  Metrics metrics;

  void start(int groups = 1) {
    publisher = std::move(KvEventPublisher::start(options, groups)).value();
    sink = publisher->sink();
    publisher->add_metrics(metrics, "m");
  }
  int port(bool replay = false, size_t group = 0) const {
    const std::string line = publisher->endpoints().at(group);
    const size_t at = replay ? line.rfind(':') : line.find(':', 6);
    return std::stoi(line.substr(at + 1));
  }
  double metric(const std::string& name) const {
    const std::string text = metrics.exposition(), start = name + "{model_name=\"m\"} ";
    const size_t at = text.find(start);
    return at == std::string::npos ? -1 : std::stod(text.substr(at + start.size()));
  }
  bool publish(int number, int num_blocks = 1) { return sink(0, {stored(number, num_blocks)}); }
  void wait_for_subscribers(int count) {
    EXPECT_TRUE(eventually([&] { return metric("sparrow:kv_event_subscribers") == count; }));
  }
};

TEST_F(KvEventPublisherTest, SubscribersGetNumberedBatchesUnderTheirTopic) {
  start();
  Socket all(port(), "SUB"), mine(port(), "SUB"), others(port(), "SUB");
  all.subscribe("");
  mine.subscribe("kv@");
  others.subscribe("kv@you");
  wait_for_subscribers(3);
  EXPECT_TRUE(publish(1));
  EXPECT_TRUE(publish(2));
  for (Socket* socket : {&all, &mine}) {
    for (uint64_t sequence = 0; sequence < 2; ++sequence) {
      const Socket::Message message = socket->read_message();
      EXPECT_EQ(message.topic, "kv@me");
      EXPECT_EQ(message.sequence, sequence);
      const CacheEvent event = stored(static_cast<int>(sequence) + 1);
      // But for the time, bytes 1 to 9.
      EXPECT_EQ(message.payload.substr(10),
                encode_kv_events({&event, 1}, 0, 0, KvEventFormat::kMap).substr(10));
    }
  }
  EXPECT_TRUE(others.client().read_bytes(1, std::chrono::milliseconds(20)).empty());
  EXPECT_EQ(metric("sparrow:kv_events_total"), 2);
  EXPECT_EQ(metric("sparrow:kv_events_dropped_total"), 0);
  mine.client().close();
  wait_for_subscribers(2);
}

TEST_F(KvEventPublisherTest, GroupsHaveStreamsOfTheirOwn) {
  start(/*groups=*/2);
  Socket first(port(false, 0), "SUB"), second(port(false, 1), "SUB");
  first.subscribe("");
  second.subscribe("");
  wait_for_subscribers(2);
  EXPECT_TRUE(sink(1, {stored(1)}));
  EXPECT_TRUE(sink(0, {stored(2)}));
  const Socket::Message of_second = second.read_message(), of_first = first.read_message();
  EXPECT_EQ(of_second.payload.back(), 1);  // the data-parallel rank
  EXPECT_EQ(of_first.payload.back(), 0);
  EXPECT_EQ(of_first.sequence, 0u);
  EXPECT_EQ(of_second.sequence, 0u);
}

TEST_F(KvEventPublisherTest, WhoMissedSomeCanAskForThem) {
  options.buffer_steps = 3;
  start();
  for (int i = 0; i < 6; ++i) publish(i);
  Socket asker(port(/*replay=*/true), "REQ");
  ASSERT_TRUE(eventually([&] { return metric("sparrow:kv_events_total") == 6; }));
  asker.ask_from(4);
  for (const uint64_t sequence : {uint64_t{4}, uint64_t{5}, ~uint64_t{0}}) {
    const Socket::Message message = asker.read_message();
    EXPECT_EQ(message.topic, "");  // REQ's empty frame
    EXPECT_EQ(message.sequence, sequence);
    EXPECT_EQ(message.payload.empty(), sequence == ~uint64_t{0});
  }
  // Batches 0 to 2 are gone: all that is there now, as of the latest.
  asker.ask_from(1);
  const Socket::Message all = asker.read_message();
  EXPECT_EQ(all.sequence, 5u);
  KvMirror expected;
  for (int i = 0; i < 6; ++i) {
    const CacheEvent event = stored(i);
    expected.apply({&event, 1});
  }
  EXPECT_EQ(all.payload.substr(10), encode_kv_events(expected.list(), 0, 0, KvEventFormat::kMap).substr(10));
  EXPECT_EQ(asker.read_message().sequence, ~uint64_t{0});
}

TEST_F(KvEventPublisherTest, ASubscriberThatDoesNotReadLosesEventsAndHoldsUpNobody) {
  options.hwm = 4;
  start();
  Socket slow(port(), "SUB"), quick(port(), "SUB");
  slow.subscribe("");
  quick.subscribe("");
  wait_for_subscribers(2);
  // Until the kernel's buffers are full and more.
  uint64_t sent = 0;
  for (; metric("sparrow:kv_events_dropped_total") == 0; ++sent) {
    ASSERT_TRUE(publish(1, 200));
    ASSERT_EQ(quick.read_message().sequence, sent);
    ASSERT_LT(sent, 10'000u);
  }
  EXPECT_EQ(static_cast<int>(metric("sparrow:kv_events_dropped_total")) % 200, 0);
}

TEST_F(KvEventPublisherTest, AFullQueueRefusesAndCounts) {
  options.max_queue_size = 1;
  start();
  int refused = 0;
  // Encoding takes longer than handing over.
  for (int i = 0; i < 1000 && refused == 0; ++i) refused += !publish(i, 200);
  EXPECT_EQ(metric("sparrow:kv_events_dropped_total"), refused * 200);
}

TEST_F(KvEventPublisherTest, PeersThatBreakTheProtocolAreCutOff) {
  start();
  RawClient http(port());
  http.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n" + std::string(64, 'x'));
  http.read_bytes(zmtp::kGreetingBytes);
  http.read_all();
  EXPECT_TRUE(http.is_closed_within(test::kPatience));
  Socket push(port(), "PUSH");
  EXPECT_TRUE(push.client().is_closed_within(test::kPatience));
  Socket large(port(), "SUB");
  large.client().send(std::string("\x02\x7f\0\0\0\0\0\0\0", 9));
  EXPECT_TRUE(large.client().is_closed_within(test::kPatience));
  Socket healthy(port(), "SUB");
  healthy.client().send(std::string("\x04\x09\x04PING\0\x01hi", 11));
  EXPECT_EQ(healthy.read_frame(), "\x04PONGhi");
  healthy.subscribe("");
  wait_for_subscribers(1);
  publish(1);
  EXPECT_EQ(healthy.read_message().sequence, 0u);
}

TEST_F(KvEventPublisherTest, APortThatIsTakenIsAnError) {
  start();
  options.endpoint.port = port();
  const auto second = KvEventPublisher::start(options, 1);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("cannot listen on tcp://*:"), std::string::npos);
}

}  // namespace
}  // namespace sparrow
