// SPDX-License-Identifier: Apache-2.0
// What no client may say to the server, case by case, with the answer that each must get; and what is odd,
// and right. After every case the server must still answer others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json/json.h"
#include "support/server/http_test_server.h"

namespace sparrow::test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

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

}  // namespace
}  // namespace sparrow::test
