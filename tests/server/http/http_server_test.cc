// SPDX-License-Identifier: Apache-2.0
// The HTTP server does what it promises to clients that behave.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "support/server/http_test_server.h"

namespace sparrow::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

HttpServerOptions any_port() {
  HttpServerOptions options;
  options.port = 0;
  return options;
}

TEST(HttpServer, AnswersARequest) {
  HttpTestServer server(any_port());
  const RawResponse response = server.ask(get_request("/hello"));
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body, "hello");
  EXPECT_EQ(response.header("content-type"), "text/plain");
  EXPECT_EQ(response.header("content-length"), "5");
  EXPECT_TRUE(response.header("date").ends_with(" GMT"));
  EXPECT_EQ(response.header("connection"), "");
}

TEST(HttpServer, KeepsTheConnectionForManyRequests) {
  HttpTestServer server(any_port());
  RawClient client = server.connect();
  for (int i = 0; i < 100; ++i) {
    const std::string body = std::to_string(i);
    ASSERT_TRUE(client.send(post_request("/echo", body)));
    EXPECT_EQ(client.read_response().body, "POST\n/echo\n\n" + body);
  }
  EXPECT_EQ(server.server().num_connections(), 1);
}

TEST(HttpServer, AnswersPipelinedRequestsInOrder) {
  HttpTestServer server(any_port());
  RawClient client = server.connect();
  std::string requests;
  for (int i = 0; i < 200; ++i) requests += post_request("/echo", std::to_string(i));
  ASSERT_TRUE(client.send(requests));
  for (int i = 0; i < 200; ++i) EXPECT_EQ(client.read_response().body, "POST\n/echo\n\n" + std::to_string(i));
}

TEST(HttpServer, AnswersPipelinedRequestsThoughTheClientHasFinishedSending) {
  HttpTestServer server(any_port());
  RawClient client = server.connect();
  ASSERT_TRUE(client.send(get_request("/hello") + get_request("/echo?a=b")));
  client.finish_sending();
  EXPECT_EQ(client.read_response().body, "hello");
  EXPECT_EQ(client.read_response().body, "GET\n/echo\na=b\n");
}

TEST(HttpServer, GivesHeadTheHeadOfGet) {
  HttpTestServer server(any_port());
  RawClient client = server.connect();
  ASSERT_TRUE(client.send("HEAD /hello HTTP/1.1\r\nHost: test\r\n\r\n"));
  const RawResponse head = client.read_response(/*to_head=*/true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("content-length"), "5");
  // Had a body been sent, the next answer would start with it.
  ASSERT_TRUE(client.send(get_request("/hello")));
  EXPECT_EQ(client.read_response().body, "hello");
}

TEST(HttpServer, StreamsNothingToHead) {
  HttpTestServer server(any_port());
  RawClient client = server.connect();
  ASSERT_TRUE(client.send("HEAD /stream?n=3 HTTP/1.1\r\nHost: test\r\n\r\n"));
  EXPECT_EQ(client.read_response(/*to_head=*/true).header("transfer-encoding"), "chunked");
  ASSERT_TRUE(client.send(get_request("/hello")));
  EXPECT_EQ(client.read_response().body, "hello");
}

TEST(HttpServer, AnswersOptionsOfTheServerAsAWhole) {
  HttpTestServer server(any_port());
  RawClient client = server.connect();
  ASSERT_TRUE(client.send("OPTIONS * HTTP/1.1\r\nHost: test\r\n\r\n"));
  const RawResponse response = client.read_response();
  EXPECT_EQ(response.status, 204);
  EXPECT_THAT(response.header("allow"), HasSubstr("POST"));
  EXPECT_EQ(response.header("content-length"), "");
}

TEST(HttpServer, StreamsChunksAndKeepsTheConnection) {
  HttpTestServer server(any_port());
  RawClient client = server.connect();
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(client.send(get_request("/stream?n=4")));
    const RawResponse response = client.read_response();
    EXPECT_EQ(response.body, "0\n1\n2\n3\n");
    EXPECT_EQ(response.num_chunks, 4);
    EXPECT_TRUE(response.complete);
  }
}

TEST(HttpServer, StreamsToHttp10UntilTheClose) {
  HttpTestServer server(any_port());
  const RawResponse response = server.ask("GET /stream?n=2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(response.body, "0\n1\n");
  EXPECT_TRUE(response.complete);
  EXPECT_EQ(response.header("transfer-encoding"), "");
  EXPECT_EQ(response.header("connection"), "close");
}

TEST(HttpServer, ClosesAfterHttp10UnlessAskedNotTo) {
  HttpTestServer server(any_port());
  RawClient plain = server.connect();
  ASSERT_TRUE(plain.send("GET /hello HTTP/1.0\r\n\r\n"));
  EXPECT_EQ(plain.read_response().header("connection"), "close");
  EXPECT_TRUE(plain.is_closed_within(kPatience));

  RawClient kept = server.connect();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(kept.send("GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
    EXPECT_EQ(kept.read_response().header("connection"), "keep-alive");
  }
}

TEST(HttpServer, ClosesWhenAskedTo) {
  HttpTestServer server(any_port());
  RawClient client = server.connect();
  ASSERT_TRUE(client.send(get_request("/hello", "Connection: close\r\n") + get_request("/hello")));
  EXPECT_EQ(client.read_response().header("connection"), "close");
  EXPECT_TRUE(client.is_closed_within(kPatience));  // the second request was not answered
}

TEST(HttpServer, ReadsChunkedBodiesWithExtensionsAndTrailers) {
  HttpTestServer server(any_port());
  const RawResponse response = server.ask(
      "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3;name=\"value\"\r\nabc\r\nA\r\n0123456789\r\n000\r\nTrailer: x\r\n\r\n");
  EXPECT_EQ(response.body, "POST\n/echo\n\nabc0123456789");
}

TEST(HttpServer, SendsContinueBeforeTheBody) {
  HttpTestServer server(any_port());
  RawClient client = server.connect();
  ASSERT_TRUE(
      client.send("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nExpect: 100-Continue\r\n\r\n"));
  EXPECT_EQ(client.read_response().status, 100);
  ASSERT_TRUE(client.send("ok"));
  EXPECT_EQ(client.read_response().body, "POST\n/echo\n\nok");
}

TEST(HttpServer, SendsNoContinueWhenTheBodyIsThere) {
  HttpTestServer server(any_port());
  const RawResponse response = server.ask(post_request("/echo", "ok", "Expect: 100-continue\r\n"));
  EXPECT_EQ(response.status, 200);
}

TEST(HttpServer, RefusesOnTheHeadAlone) {
  HttpServerOptions options = any_port();
  options.check_head = [](const HttpRequest& request) -> std::optional<HttpResponse> {
    if (request.headers.find("authorization")) return std::nullopt;
    return error_response({.status = 401, .message = "no key"});
  };
  HttpTestServer server(options);
  RawClient client = server.connect();
  // The body is never sent, and no 100 Continue asks for it.
  ASSERT_TRUE(
      client.send("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"));
  const RawResponse refused = client.read_response();
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.header("connection"), "close");
  EXPECT_EQ(server.handlers_started, 0);

  RawClient kept = server.connect();
  ASSERT_TRUE(kept.send(get_request("/hello")));
  EXPECT_EQ(kept.read_response().status, 401);  // without a body the connection goes on
  ASSERT_TRUE(kept.send(get_request("/hello", "AUTHORIZATION: x\r\n")));
  EXPECT_EQ(kept.read_response().status, 200);
}

TEST(HttpServer, PassesUsableRequestIdsOnAndReplacesOthers) {
  HttpTestServer server(any_port());
  const auto id_for = [&](const std::string& sent) {
    return server.ask(get_request("/hello", "X-Request-Id: " + sent + "\r\n")).header("x-request-id");
  };
  EXPECT_EQ(id_for("abc-123_X.y:z"), "abc-123_X.y:z");
  EXPECT_EQ(id_for(std::string(128, 'a')), std::string(128, 'a'));
  EXPECT_TRUE(id_for(std::string(129, 'a')).starts_with("req-"));
  EXPECT_TRUE(id_for("a b").starts_with("req-"));
  EXPECT_TRUE(id_for("\xC3\xA9").starts_with("req-"));
  const std::string first = server.ask(get_request("/hello")).header("x-request-id");
  const std::string second = server.ask(get_request("/hello")).header("x-request-id");
  EXPECT_TRUE(first.starts_with("req-"));
  EXPECT_NE(first, second);
}

TEST(HttpServer, WakesAWaitingHandlerFromAnotherThread) {
  HttpTestServer server(any_port());
  RawClient client = server.connect();
  ASSERT_TRUE(client.send(get_request("/wait")));
  ASSERT_TRUE(server.becomes(server.waits_started, 1));
  server.wake_all();
  EXPECT_EQ(client.read_response().body, "woken");
  server.wake_all();  // the exchange is over: nothing may happen
  EXPECT_TRUE(server.is_healthy());
}

TEST(HttpServer, TellsAWaitingHandlerThatItsPeerLeft) {
  HttpTestServer server(any_port());
  for (const bool politely : {true, false}) {
    RawClient client = server.connect();
    ASSERT_TRUE(client.send(get_request("/wait")));
    ASSERT_TRUE(server.becomes(server.waits_started, politely ? 1 : 2));
    politely ? client.close() : client.reset();
    EXPECT_TRUE(server.becomes(server.peers_gone, politely ? 1 : 2));
  }
  EXPECT_TRUE(server.has_connections(0));
}

TEST(HttpServer, KeepsWhatIsPipelinedWhileAHandlerWaits) {
  HttpTestServer server(any_port());
  RawClient client = server.connect();
  ASSERT_TRUE(client.send(get_request("/wait")));
  ASSERT_TRUE(server.becomes(server.waits_started, 1));
  ASSERT_TRUE(client.send(get_request("/echo?next")));
  std::this_thread::sleep_for(milliseconds(20));
  server.wake_all();
  EXPECT_EQ(client.read_response().body, "woken");
  EXPECT_EQ(client.read_response().body, "GET\n/echo\nnext\n");
}

TEST(HttpServer, ServesOnSeveralThreads) {
  HttpServerOptions options = any_port();
  options.num_threads = 3;
  HttpTestServer server(options);
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 6; ++t)
    threads.emplace_back([&] {
      RawClient client = server.connect();
      for (int i = 0; i < 50; ++i) {
        client.send(get_request("/stream?n=2"));
        if (client.read_response().body == "0\n1\n") ++good;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 300);
}

TEST(HttpServer, DrainsRunningRequestsAndClosesIdleConnections) {
  HttpTestServer server(any_port());
  RawClient idle = server.connect(), busy = server.connect();
  ASSERT_TRUE(idle.send(get_request("/hello")));
  ASSERT_EQ(idle.read_response().status, 200);
  ASSERT_TRUE(busy.send(get_request("/wait")));
  ASSERT_TRUE(server.becomes(server.waits_started, 1));
  std::thread drain(
      [&] { EXPECT_TRUE(server.server().drain(std::chrono::steady_clock::now() + seconds(10))); });
  EXPECT_TRUE(idle.is_closed_within(kPatience));
  EXPECT_FALSE(RawClient(server.port()).connected());
  server.wake_all();
  const RawResponse response = busy.read_response();
  EXPECT_EQ(response.body, "woken");
  EXPECT_EQ(response.header("connection"), "close");
  busy.close();
  drain.join();
}

TEST(HttpServer, DrainGivesUpAtItsDeadlineAndStopEndsTheRest) {
  HttpTestServer server(any_port());
  RawClient busy = server.connect();
  ASSERT_TRUE(busy.send(get_request("/wait")));
  ASSERT_TRUE(server.becomes(server.waits_started, 1));
  EXPECT_FALSE(server.server().drain(std::chrono::steady_clock::now() + milliseconds(50)));
  server.server().stop();
  EXPECT_EQ(server.peers_gone, 1);
  EXPECT_EQ(server.handlers_ended, server.handlers_started);
}

TEST(HttpServer, ReportsEachExchange) {
  HttpTestServer server(any_port());
  server.ask(get_request("/hello", "X-Request-Id: mine\r\n"));
  server.ask(get_request("/throw"));
  server.ask("BAD\r\n\r\n");
  ASSERT_TRUE(server.has_connections(0));
  const auto done = server.done();
  ASSERT_EQ(done.size(), 3u);
  EXPECT_EQ(done[0].path, "/hello");
  EXPECT_EQ(done[0].request_id, "mine");
  EXPECT_EQ(done[0].notes, "model=demo;tokens=7;");
  EXPECT_EQ(done[0].response_bytes, 5);
  EXPECT_TRUE(done[0].complete);
  EXPECT_EQ(done[1].status, 500);
  EXPECT_EQ(done[1].failure, "secret: /etc/passwd");
  EXPECT_EQ(done[2].status, 400);
}

TEST(HttpServer, SendsNoCorsFieldsUnlessAsked) {
  HttpTestServer server(any_port());
  const RawResponse response = server.ask(get_request("/hello", "Origin: https://a.example\r\n"));
  EXPECT_EQ(response.header("access-control-allow-origin"), "");
  const RawResponse preflight = server.ask(
      "OPTIONS /hello HTTP/1.1\r\nHost: t\r\nOrigin: https://a.example\r\nAccess-Control-Request-Method: "
      "POST\r\n\r\n");
  EXPECT_EQ(preflight.header("access-control-allow-methods"), "");
}

TEST(HttpServer, AnswersBrowsersOfAllowedOriginsOnly) {
  HttpServerOptions options = any_port();
  options.allowed_origins = {"https://a.example"};
  HttpTestServer server(options);
  const auto preflight = [&](const std::string& origin) {
    return server.ask(
        "OPTIONS /hello HTTP/1.1\r\nHost: t\r\nOrigin: " + origin +
        "\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: x-a, x-b\r\n\r\n");
  };
  const RawResponse allowed = preflight("https://a.example");
  EXPECT_EQ(allowed.status, 204);
  EXPECT_EQ(allowed.header("access-control-allow-origin"), "https://a.example");
  EXPECT_EQ(allowed.header("access-control-allow-headers"), "x-a, x-b");
  EXPECT_EQ(allowed.header("vary"), "Origin");
  EXPECT_EQ(preflight("https://a.example.evil").header("access-control-allow-origin"), "");
  EXPECT_EQ(server.ask(get_request("/hello", "Origin: https://a.example\r\n"))
                .header("access-control-allow-origin"),
            "https://a.example");
}

TEST(HttpServer, ListensOnIpv6) {
  HttpServerOptions options = any_port();
  options.host = "::1";
  HttpTestServer server(options);
  RawClient client(server.port(), "::1");
  ASSERT_TRUE(client.connected());
  ASSERT_TRUE(client.send(get_request("/hello")));
  EXPECT_EQ(client.read_response().body, "hello");
  EXPECT_THAT(server.server().url(), HasSubstr("http://[::1]:"));
}

TEST(HttpServer, ListensOnBothAddressesOfLocalhost) {
  HttpServerOptions options = any_port();
  options.host = "localhost";
  HttpTestServer server(options);
  EXPECT_TRUE(RawClient(server.port(), "127.0.0.1").connected());
}

TEST(HttpServer, ExplainsWhyItCannotStart) {
  const auto handler = [](Exchange&) -> net::awaitable<void> { co_return; };
  const auto error = [&](HttpServerOptions options) {
    auto server = HttpServer::start(std::move(options), handler);
    return server.ok() ? "" : server.error().message;
  };
  HttpTestServer running(any_port());
  HttpServerOptions options = any_port();
  options.port = running.port();
  EXPECT_THAT(error(options), HasSubstr("Address already in use"));
  options = any_port();
  options.host = "no.such.host.invalid";
  EXPECT_THAT(error(options), HasSubstr("no.such.host.invalid"));
  options = any_port();
  options.port = 70000;
  EXPECT_THAT(error(options), HasSubstr("70000"));
  options = any_port();
  options.num_threads = 0;
  EXPECT_THAT(error(options), HasSubstr("threads"));
  options = any_port();
  options.limits.idle_time = milliseconds(0);
  EXPECT_THAT(error(options), HasSubstr("idle_time"));
}

}  // namespace
}  // namespace sparrow::test
