// SPDX-License-Identifier: Apache-2.0
#include "comm/net/frame.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>
#include <thread>

#include "comm/host/peers.h"
#include "comm/net/auth.h"
#include "comm/net/hello.h"

namespace sparrow {
namespace {

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

std::pair<Fd, Fd> socket_pair() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

GiveUp soon() {
  return at_deadline(std::chrono::steady_clock::now() + std::chrono::seconds(60));
}

TEST(Frame, ComesOutOfAnyPieces) {
  std::mt19937_64 random(1);
  Bytes stream;
  std::vector<size_t> sizes;
  for (int i = 0; i < 200; ++i) {
    sizes.push_back(i % 7 == 0 ? 0 : random() % 3000);
    const Bytes frame = make_frame(FrameType::kMessage, Bytes(sizes.back(), static_cast<std::byte>(i)));
    stream.insert(stream.end(), frame.begin(), frame.end());
  }
  FrameParser parser;
  size_t at = 0, seen = 0;
  while (at < stream.size()) {
    const size_t n = std::min<size_t>(random() % 2000, stream.size() - at);
    parser.add(std::span(stream).subspan(at, n));
    at += n;
    for (;;) {
      auto frame = parser.next();
      ASSERT_TRUE(frame.ok());
      if (!frame->has_value()) break;
      EXPECT_EQ((*frame)->payload, Bytes(sizes[seen], static_cast<std::byte>(seen)));
      ++seen;
    }
  }
  EXPECT_EQ(seen, sizes.size());
}

TEST(Frame, RefusesWhatIsNone) {
  const auto error = [](const Bytes& bytes) {
    FrameParser parser;
    parser.add(bytes);
    const auto frame = parser.next();
    return frame.ok() ? "" : frame.error().message;
  };
  EXPECT_EQ(error(bytes_of({0, 0, 0, 0, 2, 7, 0, 0})), "a frame of protocol 2, and not 1");
  EXPECT_EQ(error(bytes_of({0, 0, 0, 0, 1, 99, 0, 0})), "a frame of unknown type 99");
  EXPECT_EQ(error(bytes_of({255, 255, 255, 255, 1, 7, 0, 0})),
            "a frame of 4294967295 bytes; 1073741824 is the limit");
  EXPECT_EQ(error(bytes_of({1, 0, 0})), "");  // more may come
}

TEST(Hello, ComesBackAsItWas) {
  const Hello hello{.purpose = Purpose::kMessages,
                    .grid = {.tp = 4, .dp = 2, .expert_parallel = true, .rank = 5},
                    .local_world = 4,
                    .host = "node7",
                    .build = "1.2",
                    .config_digest = std::string("\0x", 2),
                    .gpu_uuid = "GPU-1",
                    .share_gpu = true};
  const Bytes packed = pack(hello);
  const auto back = unpack_hello(packed);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(pack(*back.operator->()), packed);
  EXPECT_EQ(back->grid, hello.grid);
  EXPECT_EQ(back->config_digest, hello.config_digest);
  for (size_t n = 0; n < packed.size(); ++n) EXPECT_FALSE(unpack_hello(std::span(packed).first(n)).ok()) << n;
}

TEST(Auth, HoldsOnlyWithTheSameToken) {
  for (const bool same : {true, false}) {
    auto [listener, connector] = socket_pair();
    std::thread other([&, &socket = connector] {
      EXPECT_EQ(authenticate(socket, same ? "token" : "taken", soon()).ok(), same);
    });
    EXPECT_EQ(admit(listener, "token", soon()).ok(), same);
    other.join();
  }
}

TEST(Auth, ARecordedProofIsWorthNothing) {
  Bytes recorded(72);  // opening, nonce, proof
  {
    auto [listener, connector] = socket_pair();
    auto [tap, replay] = socket_pair();
    std::thread host([&, &socket = listener] { EXPECT_TRUE(admit(socket, "token", soon()).ok()); });
    std::thread guest([&, &socket = replay] { EXPECT_TRUE(authenticate(socket, "token", soon()).ok()); });
    Bytes challenge(40), verdict(33);
    EXPECT_TRUE(receive_all(connector, challenge, soon()).ok());
    EXPECT_TRUE(send_all(tap, challenge, soon()).ok());
    EXPECT_TRUE(receive_all(tap, recorded, soon()).ok());
    EXPECT_TRUE(send_all(connector, recorded, soon()).ok());
    EXPECT_TRUE(receive_all(connector, verdict, soon()).ok());
    EXPECT_TRUE(send_all(tap, verdict, soon()).ok());
    host.join();
    guest.join();
  }
  auto [listener, connector] = socket_pair();
  EXPECT_TRUE(send_all(connector, recorded, soon()).ok());
  EXPECT_FALSE(admit(listener, "token", soon()).ok());
}

// What rank 0 makes of bytes from rank 1.
std::string failure_after(const Bytes& bytes, bool then_closes) {
  auto [host, guest] = socket_pair();
  std::vector<Fd> sockets(2);
  sockets[1] = std::move(host);
  Life life(2);
  Peers peers(life, 0, std::move(sockets), std::chrono::seconds(then_closes ? 60 : 2));
  EXPECT_TRUE(send_all(guest, bytes, soon()).ok());
  if (then_closes) shutdown(guest.get(), SHUT_RDWR);
  EXPECT_FALSE(peers.take(1, FrameType::kExchange).ok());
  const auto failure = life.failure();
  EXPECT_TRUE(failure.has_value());
  EXPECT_EQ(failure ? failure->rank : -1, 1);
  return failure ? failure->reason : "";
}

TEST(Peers, WhoSendsNonsenseOrNothingHasFailed) {
  EXPECT_EQ(failure_after(bytes_of({1, 2, 3, 4, 5, 6, 7, 8, 9}), false),
            "it sent a frame of protocol 5, and not 1");
  EXPECT_EQ(failure_after(make_frame(FrameType::kFail, pack_news(7, "not of this world")), false),
            "it sent news that are none");
  EXPECT_EQ(failure_after(bytes_of({200, 0, 0, 0, 1, 5, 0, 0, 1}), true), "its connection was closed");
  EXPECT_EQ(failure_after({}, true), "its connection was closed");
  EXPECT_EQ(failure_after({}, false).find("it gave no sign of life for 2."), 0u);
}

}  // namespace
}  // namespace sparrow
