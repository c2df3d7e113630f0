// SPDX-License-Identifier: Apache-2.0
// What no client may do to the server: be slow, vanish, or send too much of something; and what its own
// handlers may not do to it. After every case the server must still answer others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "support/server/http_test_server.h"

namespace sparrow::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

// ---- Slow, silent and vanishing peers ----

TEST(SlowPeer, HeadThatTricklesIsCutOff) {
  HttpTestServer server(impatient_options());
  RawClient client = server.connect();
  bool sent_all = true;
  const std::string head = "GET /hello HTTP/1.1\r\nHost: x\r\nSlow: " + std::string(3000, 'x');
  std::thread trickle([&] { sent_all = client.send_slowly(head, 1, milliseconds(10)); });
  EXPECT_EQ(client.read_response().status, 408);
  trickle.join();
  EXPECT_FALSE(sent_all);
}

TEST(SlowPeer, BodyThatTricklesIsCutOff) {
  HttpTestServer server(impatient_options());
  RawClient client = server.connect();
  ASSERT_TRUE(client.send(post_head("Content-Length: 30000\r\n")));
  bool sent_all = true;
  std::thread trickle([&] { sent_all = client.send_slowly(std::string(20'000, 'x'), 1, milliseconds(10)); });
  EXPECT_EQ(client.read_response().status, 408);
  trickle.join();
  EXPECT_FALSE(sent_all);
  EXPECT_EQ(server.handlers_started, 0);
}

TEST(SlowPeer, ChunksThatTrickleAreCutOff) {
  HttpTestServer server(impatient_options());
  RawClient client = server.connect();
  ASSERT_TRUE(client.send(chunked_post("")));
  std::thread trickle([&] {
    for (int i = 0; i < 50 && client.send("1\r\nx\r\n"); ++i) std::this_thread::sleep_for(milliseconds(20));
  });
  EXPECT_EQ(client.read_response().status, 408);
  trickle.join();
}

TEST(SlowPeer, SilenceAfterConnectingIsClosed) {
  HttpTestServer server(impatient_options());
  EXPECT_TRUE(server.connect().is_closed_within(kPatience));
}

TEST(SlowPeer, SilenceAfterARequestIsClosed) {
  HttpTestServer server(impatient_options());
  RawClient client = server.connect();
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(client.send(get_request("/hello")));
  EXPECT_EQ(client.read_response().status, 200);
  EXPECT_TRUE(client.is_closed_within(kPatience));
  EXPECT_GE(std::chrono::steady_clock::now() - start, impatient_options().limits.idle_time)
      << "which is longer than the time for a head";
}

TEST(SlowPeer, ReaderThatStopsIsCutOffInAStream) {
  HttpTestServer server(impatient_options());
  RawClient client = server.connect();
  ASSERT_TRUE(client.send(get_request("/flood")));
  EXPECT_TRUE(server.becomes(server.floods_stopped, 1));
  EXPECT_TRUE(server.has_connections(0));
  EXPECT_TRUE(server.is_healthy());
}

TEST(SlowPeer, ReaderThatStopsIsCutOffInALargeAnswer) {
  HttpServerOptions options = impatient_options();
  options.limits.bytes_per_second = size_t{1} << 30;
  HttpTestServer server(options);
  RawClient client = server.connect();
  ASSERT_TRUE(client.send(get_request("/big")));
  EXPECT_TRUE(server.becomes(server.handlers_ended, 1));
  EXPECT_TRUE(server.has_connections(0));
  EXPECT_FALSE(server.done().at(0).complete);
}

TEST(SlowPeer, ReaderThatIsSlowButReadsGetsItAll) {
  HttpServerOptions options = impatient_options();
  options.limits.write_time = seconds(10);
  HttpTestServer server(options);
  RawClient client = server.connect();
  ASSERT_TRUE(client.send(get_request("/big")));
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_EQ(client.read_response().body.size(), size_t{8} << 20);
}

TEST(Vanishing, AtEveryByteOfARequest) {
  HttpTestServer server(strict_options());
  const std::string request = post_request("/echo", "0123456789");
  for (size_t n = 0; n < request.size(); ++n) {
    RawClient client = server.connect();
    client.send(std::string_view(request).substr(0, n));
    n % 2 == 0 ? client.close() : client.reset();
  }
  EXPECT_TRUE(server.has_connections(0));
  EXPECT_EQ(server.handlers_started, 0);
  EXPECT_TRUE(server.is_healthy());
}

TEST(Vanishing, LyingContentLength) {
  HttpTestServer server(strict_options());
  RawClient client = server.connect();
  ASSERT_TRUE(client.send(post_head("Content-Length: 100\r\n") + "short"));
  client.finish_sending();
  EXPECT_TRUE(client.is_closed_within(kPatience));
  EXPECT_EQ(server.handlers_started, 0);
}

TEST(Vanishing, InTheMiddleOfAStream) {
  HttpTestServer server(strict_options());
  for (int i = 0; i < 20; ++i) {
    RawClient client = server.connect();
    ASSERT_TRUE(client.send(get_request("/flood")));
    client.read_bytes(1000);
    i % 2 == 0 ? client.close() : client.reset();
  }
  EXPECT_TRUE(server.becomes(server.floods_stopped, 20));
  EXPECT_TRUE(server.has_connections(0));
}

TEST(Vanishing, AThousandWaitingRequests) {
  HttpTestServer server(strict_options());
  std::vector<RawClient> clients;
  for (int i = 0; i < 1000; ++i) {
    clients.push_back(server.connect());
    ASSERT_TRUE(clients.back().send(get_request("/wait")));
  }
  ASSERT_TRUE(server.becomes(server.waits_started, 1000));
  clients.clear();
  EXPECT_TRUE(server.becomes(server.peers_gone, 1000));
  EXPECT_TRUE(server.has_connections(0));
}

// ---- Too much of something ----

TEST(Flood, PipelinedBytesWhileAHandlerWaitsAreNotBuffered) {
  HttpTestServer server(strict_options());
  RawClient client = server.connect();
  ASSERT_TRUE(client.send(get_request("/wait")));
  ASSERT_TRUE(server.becomes(server.waits_started, 1));
  // More than kernel buffers and limit together hold: the rest must stay with the sender.
  const std::string junk(64 << 20, 'G');
  std::thread sender([&] { client.send(junk); });
  std::this_thread::sleep_for(milliseconds(100));
  server.wake_all();
  EXPECT_EQ(client.read_response().body, "woken");
  EXPECT_EQ(client.read_response().status, 414);
  sender.join();
  EXPECT_TRUE(server.is_healthy());
}

TEST(Flood, BodiesOfAllRequestsTogetherAreLimited) {
  HttpServerOptions options = strict_options();
  options.limits.all_bodies_bytes = 100 << 10;
  HttpTestServer server(options);
  const std::string most(60 << 10, 'x');
  RawClient first = server.connect(), second = server.connect();
  ASSERT_TRUE(first.send(post_head("Content-Length: 65000\r\n") + most));
  std::this_thread::sleep_for(milliseconds(50));
  second.send(post_head("Content-Length: 65000\r\n") + most);
  const RawResponse refused = second.read_response();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.header("retry-after"), "1");
  first.close();
  second.close();
  ASSERT_TRUE(server.has_connections(0));
  EXPECT_EQ(server.ask(post_request("/echo", most)).status, 200);  // what was held is free again
}

TEST(Flood, NewConnectionsPushOutIdleOnes) {
  HttpServerOptions options = strict_options();
  options.limits.connections = 8;
  HttpTestServer server(options);
  std::vector<RawClient> idle;
  for (int i = 0; i < 50; ++i) idle.push_back(server.connect());
  EXPECT_TRUE(server.is_healthy());
  EXPECT_TRUE(idle.front().is_closed_within(kPatience));
  EXPECT_FALSE(idle.back().is_closed_within(milliseconds(50)));
  EXPECT_LE(server.server().num_connections(), 8);
}

TEST(Flood, BusyConnectionsAreNotPushedOut) {
  HttpServerOptions options = strict_options();
  options.limits.connections = 8;
  HttpTestServer server(options);
  std::vector<RawClient> busy;
  for (int i = 0; i < 8; ++i) {
    busy.push_back(server.connect());
    ASSERT_TRUE(busy.back().send(get_request("/wait")));
  }
  ASSERT_TRUE(server.becomes(server.waits_started, 8));
  const RawResponse refused = server.connect().read_response();
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("too many connections"));
  server.wake_all();
  for (RawClient& client : busy) EXPECT_EQ(client.read_response().body, "woken");
}

// The server has two threads, which take connections in turn. The second one is busy with something else
// while a request comes, and while a connection does for which there is no room.
TEST(Flood, AConnectionWhoseRequestIsNotReadYetIsNotPushedOut) {
  HttpServerOptions options = strict_options();
  options.num_threads = 2;
  options.limits.connections = 4;
  HttpTestServer server(options);
  std::vector<RawClient> clients;
  const auto ask = [&](size_t i) {
    ASSERT_TRUE(clients[i].send(get_request("/hello")));
    ASSERT_EQ(clients[i].read_response().body, "hello");
  };
  for (size_t i = 0; i < 4; ++i) {
    clients.push_back(server.connect());
    ask(i);
  }
  ASSERT_TRUE(clients[3].send(get_request("/hold")));
  ASSERT_TRUE(server.becomes(server.handlers_started, 5));
  clients.push_back(server.connect());  // makes room in the first thread
  ask(4);
  clients.push_back(server.connect());  // waits for the second
  ask(4);
  ASSERT_TRUE(clients[1].send(get_request("/hello")));
  server.let_go();
  EXPECT_EQ(clients[1].read_response().body, "hello");
}

// The client is another process: both ends of ten thousand connections are more descriptors than one may
// have.
TEST(Flood, TenThousandIdleConnections) {
  constexpr int kConnections = 10'000;
  HttpServerOptions options = strict_options();
  options.limits.header_time = seconds(120);
  HttpTestServer server(options);
  int done[2];
  ASSERT_EQ(::pipe(done), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::vector<int> fds;
    for (int i = 0; i < kConnections; ++i) {
      RawClient client(server.port());
      if (!client.connected()) ::_exit(1);
      fds.push_back(::dup(client.fd()));
    }
    char byte;
    ::close(done[1]);
    ::_exit(::read(done[0], &byte, 1) == 0 ? 0 : 2);  // until the parent closes its end
  }
  ASSERT_GT(child, 0);
  EXPECT_TRUE(server.has_connections(kConnections));
  EXPECT_TRUE(server.is_healthy());
  ::close(done[1]);
  ::close(done[0]);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(server.has_connections(0));
}

// ---- Handlers that fail ----

TEST(FailingHandler, ExceptionBecomes500AndTellsNothing) {
  HttpTestServer server(strict_options());
  const RawResponse response = server.ask(get_request("/throw"));
  EXPECT_EQ(response.status, 500);
  EXPECT_THAT(response.body, HasSubstr("\"internal_error\""));
  EXPECT_THAT(response.body, Not(HasSubstr("passwd")));
  EXPECT_TRUE(server.is_healthy());
}

TEST(FailingHandler, ExceptionInAStreamLeavesItVisiblyUnfinished) {
  HttpTestServer server(strict_options());
  const RawResponse response = server.ask(get_request("/throw-late"));
  EXPECT_EQ(response.body, "partial");
  EXPECT_FALSE(response.complete);
  EXPECT_TRUE(server.is_healthy());
}

TEST(FailingHandler, NoAnswerBecomes500) {
  HttpTestServer server(strict_options());
  EXPECT_EQ(server.ask(get_request("/silent")).status, 500);
}

TEST(FailingHandler, CannotAddFieldsThroughValues) {
  HttpServerOptions options = strict_options();
  options.check_head = [](const HttpRequest&) -> std::optional<HttpResponse> {
    HttpResponse response{.status = 429};
    response.headers.add("Retry-After", "1\r\nSet-Cookie: evil=1");
    return response;
  };
  HttpTestServer server(options);
  const RawResponse response = server.ask(get_request("/hello"));
  EXPECT_EQ(response.header("set-cookie"), "");
  EXPECT_EQ(response.header("retry-after"), "1  Set-Cookie: evil=1");
}

}  // namespace
}  // namespace sparrow::test
