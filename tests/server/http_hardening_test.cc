// SPDX-License-Identifier: Apache-2.0
// What no client may do to the server, case by case, with the answer that each must get. After every case the
// server must still answer others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/json/json.h"
#include "support/server/http_test_server.h"

namespace sparrow::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

// ---- Requests that are refused for what they say ----

struct BadRequest {
  const char* name;
  std::string bytes;
  int status;
  const char* message;  // part of it
};

void PrintTo(const BadRequest& request, std::ostream* out) {
  *out << request.name;
}

std::string post_head(const std::string& fields) {
  return "POST /echo HTTP/1.1\r\nHost: t\r\n" + fields + "\r\n";
}
std::string chunked_post(const std::string& body) {
  return post_head("Transfer-Encoding: chunked\r\n") + body;
}
std::string many_fields(int count) {
  std::string fields;
  for (int i = 0; i < count; ++i) fields += "X-" + std::to_string(i) + ": v\r\n";
  return fields;
}

std::vector<BadRequest> framing_cases() {
  return {
      {"ContentLengthAndTransferEncoding",
       post_head("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n", 400,
       "Transfer-Encoding"},
      {"TransferEncodingAndContentLength",
       post_head("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n") + "0\r\n\r\n", 400, "Content-Length"},
      {"TwoDifferentContentLengths", post_head("Content-Length: 5\r\nContent-Length: 6\r\n") + "hello", 400,
       "Content-Length"},
      {"TwoEqualContentLengths", post_head("Content-Length: 5\r\nContent-Length: 5\r\n") + "hello", 400,
       "more than one Content-Length"},
      {"ListOfContentLengths", post_head("Content-Length: 5, 5\r\n") + "hello", 400, "Content-Length"},
      {"NegativeContentLength", post_head("Content-Length: -1\r\n"), 400, "Content-Length"},
      {"SignedContentLength", post_head("Content-Length: +5\r\n") + "hello", 400, "Content-Length"},
      {"HexContentLength", post_head("Content-Length: 0x5\r\n") + "hello", 400, "Content-Length"},
      {"FractionalContentLength", post_head("Content-Length: 5.0\r\n") + "hello", 400, "Content-Length"},
      {"EmptyContentLength", post_head("Content-Length: \r\n"), 400, "Content-Length"},
      {"ContentLengthPast64Bits", post_head("Content-Length: 18446744073709551617\r\n"), 400,
       "Content-Length"},
      {"ContentLengthOverTheLimit", post_head("Content-Length: 65537\r\n"), 413, "65536"},
      {"LargestContentLength", post_head("Content-Length: 18446744073709551615\r\n"), 413, "65536"},
      {"UnknownTransferEncoding", post_head("Transfer-Encoding: gzip\r\n"), 501, "Transfer-Encoding"},
      {"StackedTransferEncoding", post_head("Transfer-Encoding: gzip, chunked\r\n"), 501,
       "Transfer-Encoding"},
      {"ChunkedTwice", post_head("Transfer-Encoding: chunked, chunked\r\n"), 501, "Transfer-Encoding"},
      {"TwoTransferEncodings", post_head("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 400,
       "Transfer-Encoding"},
      {"DisguisedTransferEncoding", post_head("Transfer-Encoding: xchunked\r\n"), 501, "Transfer-Encoding"},
      {"TransferEncodingInHttp10", "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400,
       "HTTP/1.0"},
      {"ChunkSizeNotHex", chunked_post("xyz\r\nabc\r\n0\r\n\r\n"), 400, "chunked"},
      {"ChunkSizeNegative", chunked_post("-3\r\nabc\r\n0\r\n\r\n"), 400, "chunked"},
      {"ChunkSizeWithPrefix", chunked_post("0x3\r\nabc\r\n0\r\n\r\n"), 400, "chunked"},
      {"ChunkSizeAfterSpace", chunked_post(" 3\r\nabc\r\n0\r\n\r\n"), 400, "chunked"},
      {"ChunkSizeBeforeSpace", chunked_post("3 \r\nabc\r\n0\r\n\r\n"), 400, "chunked"},
      {"ChunkSizeEmpty", chunked_post("\r\nabc\r\n0\r\n\r\n"), 400, "chunked"},
      {"ChunkSizePast64Bits", chunked_post("10000000000000003\r\nabc\r\n0\r\n\r\n"), 400, "chunked"},
      {"ChunkSizeOfManyZeros", chunked_post("0000000000000003\r\nabc\r\n0\r\n\r\n"), 400, "chunked"},
      {"ChunkOverTheLimit", chunked_post("10001\r\n"), 413, "65536"},
      {"ChunksOverTheLimitTogether", chunked_post("8000\r\n" + std::string(0x8000, 'a') + "\r\n8001\r\n"),
       413, "65536"},
      {"ChunkLongerThanItsSize", chunked_post("3\r\nabcd\r\n0\r\n\r\n"), 400, "chunked"},
      {"ChunkLineEndsWithLf", chunked_post("3\nabc\r\n0\r\n\r\n"), 400, "chunked"},
      {"ChunkDataEndsWithLf", chunked_post("3\r\nabc\n0\r\n\r\n"), 400, "chunked"},
      {"ChunkDataEndsWithCrAndAnotherByte", chunked_post("3\r\nabc\rX0\r\n\r\n"), 400, "chunked"},
      {"ChunkExtensionHidesALine", chunked_post("3;a\nb\r\nabc\r\n0\r\n\r\n"), 400, "chunked"},
      {"ChunkExtensionFlood", chunked_post("3;" + std::string(5000, 'x')), 400, "extensions"},
      {"TrailerFlood", chunked_post("0\r\nA: " + std::string(5000, 'x')), 400, "trailer"},
  };
}

std::vector<BadRequest> head_cases() {
  return {
      {"FoldedField", get_request("/hello", "X-A: 1\r\n  2\r\n"), 400, "continue"},
      {"FoldedFirstField", "GET /hello HTTP/1.1\r\n Host: t\r\n\r\n", 400, "continue"},
      {"SpaceBeforeColon", get_request("/hello", "X-A : 1\r\n"), 400, "head"},
      {"FieldWithoutColon", get_request("/hello", "X-A\r\n"), 400, "head"},
      {"FieldWithoutName", get_request("/hello", ": 1\r\n"), 400, "head"},
      {"SpaceInFieldName", get_request("/hello", "X A: 1\r\n"), 400, "head"},
      {"BareLineFeeds", "GET /hello HTTP/1.1\nHost: t\n\n", 400, "CRLF"},
      {"BareCarriageReturn", get_request("/hello", "X-A: 1\rX-B: 2\r\n"), 400, "head"},
      {"NulInField", get_request("/hello", std::string("X-A: 1\0b\r\n", 10)), 400, "head"},
      {"ControlInField", get_request("/hello", "X-A: \x01\r\n"), 400, "head"},
      {"MissingHost", "GET /hello HTTP/1.1\r\n\r\n", 400, "Host"},
      {"TwoHosts", get_request("/hello", "Host: other\r\n"), 400, "Host"},
      {"HostWithPath", "GET /hello HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, "Host"},
      {"HostWithUser", "GET /hello HTTP/1.1\r\nHost: user@a\r\n\r\n", 400, "Host"},
      {"TooManyFields", get_request("/hello", many_fields(20)), 431, "20 header fields"},
      {"GiantField", get_request("/hello", "X-A: " + std::string(5000, 'a') + "\r\n"), 431, "4096 bytes"},
      {"GiantFieldWithoutEnd", "GET /hello HTTP/1.1\r\nX-A: " + std::string(5000, 'a'), 431, "4096 bytes"},
      {"GiantTarget", get_request("/" + std::string(2000, 'a')), 414, "1024 bytes"},
      {"GiantTargetWithoutEnd", "GET /" + std::string(2000, 'a'), 414, "1024 bytes"},
      {"UnknownMethod", "BREW /hello HTTP/1.1\r\nHost: t\r\n\r\n", 501, "BREW"},
      {"TraceMethod", "TRACE /hello HTTP/1.1\r\nHost: t\r\n\r\n", 501, "TRACE"},
      {"ConnectMethod", "CONNECT host:443 HTTP/1.1\r\nHost: t\r\n\r\n", 501, "CONNECT"},
      {"LowerCaseMethod", "get /hello HTTP/1.1\r\nHost: t\r\n\r\n", 400, "method"},
      {"Http09", "GET /hello\r\n\r\n", 400, "target"},
      {"Http2Preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "HTTP/1.1"},
      {"Http12", "GET /hello HTTP/1.2\r\nHost: t\r\n\r\n", 505, "HTTP/1.1"},
      {"NoVersionDigits", "GET /hello HTTP/x.y\r\nHost: t\r\n\r\n", 505, "HTTP/1.1"},
      {"NotHttpAtAll", "GET /hello FTP/1.1\r\nHost: t\r\n\r\n", 400, "head"},
      {"TwoSpacesInRequestLine", "GET  /hello HTTP/1.1\r\nHost: t\r\n\r\n", 400, "target"},
      {"TlsToAPlainPort", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11), 400, "method"},
      {"BinaryNoise", std::string("\0\xff\x80\x7f", 4), 400, "method"},
      {"UnknownExpectation", get_request("/hello", "Expect: 200-ok\r\n"), 417, "100-continue"},
      {"CompressedBody", post_request("/echo", "x", "Content-Encoding: gzip\r\n"), 415, "Compressed"},
  };
}

std::vector<BadRequest> target_cases() {
  return {
      {"DotDotSegment", get_request("/a/../hello"), 400, "target"},
      {"DotSegment", get_request("/./hello"), 400, "target"},
      {"TrailingDotDot", get_request("/hello/.."), 400, "target"},
      {"EncodedDotDot", get_request("/a/%2e%2e/hello"), 400, "target"},
      {"HalfEncodedDotDot", get_request("/a/.%2E/hello"), 400, "target"},
      {"TwiceEncodedDotDot", get_request("/a/%252e%252e/hello"), 404, "no such path"},
      {"EncodedSlash", get_request("/v1%2Fhello"), 404, "no such path"},
      {"DoubledSlash", get_request("//hello"), 404, "no such path"},
      {"EncodedNul", get_request("/hello%00"), 400, "target"},
      {"EncodedLineEnd", get_request("/hello%0d%0aX:1"), 400, "target"},
      {"BadPercent", get_request("/hello%zz"), 400, "target"},
      {"CutPercent", get_request("/hello%2"), 400, "target"},
      {"EncodedBrokenUtf8", get_request("/hello%ff"), 400, "target"},
      {"RawBytesPastAscii", get_request("/hell\xC3\xB6"), 400, "target"},
      {"Fragment", get_request("/hello#there"), 400, "target"},
      {"RelativeTarget", get_request("hello"), 400, "target"},
      {"StarForGet", get_request("*"), 400, "target"},
      {"ForeignScheme", get_request("file:///etc/passwd"), 400, "target"},
      {"AbsoluteWithUser", get_request("http://user@t/hello"), 400, "target"},
      {"AbsoluteWithoutHost", get_request("http:///hello"), 400, "target"},
      {"AbsoluteToNowhere", get_request("http://t/nowhere"), 404, "no such path"},
  };
}

class Refused : public testing::TestWithParam<BadRequest> {};

TEST_P(Refused, WithTheRequiredAnswer) {
  const BadRequest& request = GetParam();
  HttpTestServer server(strict_options());
  RawClient client = server.connect();
  client.send(request.bytes);
  const RawResponse response = client.read_response();
  EXPECT_EQ(response.status, request.status);
  const auto document = JsonDocument::parse(response.body, "answer");
  ASSERT_TRUE(document.ok()) << response.body;
  const Json error = document.value().root().at("error").value();
  EXPECT_THAT(error.at("message").value().as_string().value(), HasSubstr(request.message));
  EXPECT_EQ(error.size(), 4u);
  EXPECT_EQ(response.header("content-type"), "application/json");
  EXPECT_FALSE(response.header("x-request-id").empty());
  if (request.status != 404) {
    EXPECT_EQ(server.handlers_started, 0);
    EXPECT_EQ(response.header("connection"), "close");
    EXPECT_EQ(client.read_all(kPatience), "");  // one answer, and what followed was not taken for a request
  }
  EXPECT_TRUE(server.is_healthy());
}

std::string case_name(const testing::TestParamInfo<BadRequest>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Framing, Refused, testing::ValuesIn(framing_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Head, Refused, testing::ValuesIn(head_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Target, Refused, testing::ValuesIn(target_cases()), case_name);

// ---- Requests that are odd, and right ----

TEST(Tolerated, AbsoluteTarget) {
  HttpTestServer server(strict_options());
  EXPECT_EQ(server.ask(get_request("http://other:80/echo?q=1")).body, "GET\n/echo\nq=1\n");
  EXPECT_EQ(server.ask(get_request("http://other")).status, 404);
}

TEST(Tolerated, EncodedLettersOfThePath) {
  HttpTestServer server(strict_options());
  EXPECT_EQ(server.ask(get_request("/%68ello")).body, "hello");
}

TEST(Tolerated, OneEmptyLineBeforeARequest) {
  HttpTestServer server(strict_options());
  EXPECT_EQ(server.ask("\r\n" + get_request("/hello")).body, "hello");
  EXPECT_EQ(server.ask("\r\n\r\n" + get_request("/hello")).status, 400);
}

TEST(Tolerated, OneByteAtATime) {
  HttpTestServer server(strict_options());
  RawClient client = server.connect();
  const std::string one_byte_chunks = chunked_post("1\r\na\r\n1\r\nb\r\n1;x=y\r\nc\r\n0\r\nT: v\r\n\r\n");
  ASSERT_TRUE(client.send_slowly(one_byte_chunks + get_request("/hello"), 1, milliseconds(0)));
  EXPECT_EQ(client.read_response().body, "POST\n/echo\n\nabc");
  EXPECT_EQ(client.read_response().body, "hello");
}

TEST(Tolerated, TenThousandOneByteChunks) {
  HttpTestServer server(strict_options());
  std::string body;
  for (int i = 0; i < 10000; ++i) body += "1\r\nx\r\n";
  EXPECT_EQ(server.ask(chunked_post(body + "0\r\n\r\n")).body.size(), 12u + 10000u);
}

TEST(Tolerated, BodyOfExactlyTheLimit) {
  HttpTestServer server(strict_options());
  const std::string body(64 << 10, 'x');
  EXPECT_EQ(server.ask(post_request("/echo", body)).status, 200);
  EXPECT_EQ(server.ask(chunked_post("10000\r\n" + body + "\r\n0\r\n\r\n")).status, 200);
}

TEST(Tolerated, FieldsOfExactlyTheLimit) {
  HttpTestServer server(strict_options());
  EXPECT_EQ(server.ask(get_request("/hello", many_fields(19))).status, 200);
}

TEST(Tolerated, BodyOnGet) {
  HttpTestServer server(strict_options());
  RawClient client = server.connect();
  ASSERT_TRUE(
      client.send("GET /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc" + get_request("/hello")));
  EXPECT_EQ(client.read_response().body, "GET\n/echo\n\nabc");
  EXPECT_EQ(client.read_response().body, "hello");
}

TEST(Tolerated, ResponseFieldsCannotBeSplitByARequestId) {
  HttpTestServer server(strict_options());
  const std::string answer =
      server.ask(get_request("/hello", "X-Request-Id: a\tb\r\n")).header("x-request-id");
  EXPECT_TRUE(answer.starts_with("req-"));
}

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
