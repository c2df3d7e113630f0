// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/http_client.h"

#include <gtest/gtest.h>

#include "support/server/fake_server.h"
#include "support/server/http_test_server.h"
#include "support/server/test_certificate.h"
#include "support/temp_dir.h"

namespace sparrow::cli {
namespace {

struct Got {
  int status = 0;
  bool complete = false;
  std::string body = {}, error = {};
};

Got get(const HttpServerAddress& server, const std::string& path) {
  Got got;
  const auto answer = http_call(server, {.path = path}, [&](std::string_view piece) { got.body += piece; });
  if (!answer.ok()) return {.error = answer.error().message};
  got.status = answer->status;
  got.complete = answer->complete;
  return got;
}

HttpServerAddress at(const std::string& url) {
  return {.url = parse_http_url(url).value()};
}

TEST(HttpUrl, IsTakenApart) {
  const HttpUrl plain = parse_http_url("http://127.0.0.1:8000/v1/").value();
  EXPECT_EQ(plain.host, "127.0.0.1");
  EXPECT_EQ(plain.port, "8000");
  EXPECT_EQ(plain.path, "");
  EXPECT_FALSE(plain.tls);
  const HttpUrl six = parse_http_url("http://[::1]:81/proxy").value();
  EXPECT_EQ(six.host, "::1");
  EXPECT_EQ(six.authority(), "[::1]:81");
  EXPECT_EQ(six.path, "/proxy");
  EXPECT_EQ(parse_http_url("http://[::1]").value().port, "80");
  EXPECT_EQ(parse_http_url("https://x").value().port, "443");
  EXPECT_TRUE(parse_http_url("https://x").value().tls);
  for (const char* text : {"", "http://", "127.0.0.1:8000", "ftp://x", "http://x:", "http://x:0",
                           "http://x:99999", "http://x:8a", "http://me@x", "http://a b", "http://x/\r\nA: b"})
    EXPECT_FALSE(parse_http_url(text).ok()) << text;
}

TEST(HttpClient, ReadsWholeAndChunkedBodies) {
  const test::HttpTestServer server;
  const HttpServerAddress address = at("http://127.0.0.1:" + std::to_string(server.port()));
  EXPECT_EQ(get(address, "/hello").body, "hello");
  EXPECT_TRUE(get(address, "/hello").complete);
  EXPECT_EQ(get(address, "/stream?n=5").body, "0\n1\n2\n3\n4\n");
  EXPECT_EQ(get(address, "/nothing-here").status, 404);
}

TEST(HttpClient, EndsWhenItIsToldTo) {
  const test::HttpTestServer server;
  const HttpServerAddress address = at("http://127.0.0.1:" + std::to_string(server.port()));
  std::atomic<bool> stop{false};
  const auto answer =
      http_call(address, {.path = "/flood", .stop = &stop}, [&](std::string_view) { stop = true; });
  EXPECT_EQ(answer.value().status, 200);
  EXPECT_FALSE(answer.value().complete);
  EXPECT_NE(get(at("http://127.0.0.1:1"), "/").error.find("no server at 127.0.0.1:1"), std::string::npos);
}

TEST(HttpClient, TellsAWholeBodyFromACutOne) {
  std::string bytes;
  const test::FakeServer server([&](const auto&, const test::FakeServer::Peer& peer) { peer.send(bytes); });
  const auto answer_to = [&](std::string answer) {
    bytes = std::move(answer);
    return get(at(server.url()), "/");
  };
  EXPECT_TRUE(answer_to("HTTP/1.1 200 OK\r\n\r\nabc").complete);
  EXPECT_TRUE(answer_to("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcd").complete);
  EXPECT_FALSE(answer_to("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc").complete);
  EXPECT_TRUE(
      answer_to("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n").complete);
  EXPECT_FALSE(answer_to("HTTP/1.1 200 OK\r\nTransfer-Encoding:chunked\r\n\r\n3\r\nabc\r\n").complete);
  EXPECT_EQ(answer_to("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n").error,
            "the server's answer is garbled");
  EXPECT_EQ(answer_to("SSH-2.0\r\n").error, "what answers there does not speak HTTP");
  EXPECT_NE(answer_to("").error.find("without an answer; is it https://?"), std::string::npos);
}

TEST(HttpClient, AKeyCannotAddFields) {
  HttpServerAddress address = at("http://127.0.0.1:1");
  address.api_key = "k\r\nX-Other: 1";
  EXPECT_NE(get(address, "/").error.find("--api-key"), std::string::npos);
}

class HttpsClient : public testing::Test {
 protected:
  HttpsClient() { test::write_certificate(cert_, key_); }
  std::unique_ptr<test::HttpTestServer> serve() {
    HttpServerOptions options;
    options.tls_cert_file = cert_;
    options.tls_key_file = key_;
    auto server = std::make_unique<test::HttpTestServer>(options);
    url_ = "https://localhost:" + std::to_string(server->port());
    by_address_ = "https://127.0.0.1:" + std::to_string(server->port());
    return server;
  }

  test::TempDir dir_;
  std::string cert_ = dir_.path() / "cert.pem", key_ = dir_.path() / "key.pem";
  std::string url_, by_address_;
};

TEST_F(HttpsClient, TrustsTheCertificatesItIsTold) {
  const auto server = serve();
  HttpServerAddress address = at(url_);
  address.trust.ca_file = cert_;
  EXPECT_EQ(get(address, "/hello").body, "hello");
  EXPECT_EQ(get(address, "/stream?n=3").body, "0\n1\n2\n");
}

TEST_F(HttpsClient, RefusesOthersAndSaysWhatToDo) {
  const auto server = serve();
  const std::string unknown = get(at(url_), "/hello").error;
  EXPECT_NE(unknown.find("not trusted"), std::string::npos) << unknown;
  EXPECT_NE(unknown.find("--cacert"), std::string::npos) << unknown;
  HttpServerAddress other_name = at(by_address_);
  other_name.trust.ca_file = cert_;
  EXPECT_NE(get(other_name, "/hello").error.find("not trusted"), std::string::npos);
  HttpServerAddress no_file = at(url_);
  no_file.trust.ca_file = key_;
  EXPECT_NE(get(no_file, "/hello").error.find("--cacert"), std::string::npos);
}

TEST_F(HttpsClient, TrustsAnybodyWhenItMust) {
  const auto server = serve();
  HttpServerAddress address = at(by_address_);
  address.trust.insecure = true;
  EXPECT_EQ(get(address, "/hello").body, "hello");
}

TEST_F(HttpsClient, NoticesAPlainServer) {
  const test::HttpTestServer server;
  const std::string error = get(at("https://127.0.0.1:" + std::to_string(server.port())), "/").error;
  EXPECT_NE(error.find("http://"), std::string::npos) << error;
}

}  // namespace
}  // namespace sparrow::cli
