// SPDX-License-Identifier: Apache-2.0
#include "cli/serve/http_client.h"

#include <gtest/gtest.h>

#include "support/http_test_server.h"

namespace sparrow::cli {
namespace {

TEST(HttpUrl, IsTakenApart) {
  const HttpUrl plain = parse_http_url("http://127.0.0.1:8000/v1/").value();
  EXPECT_EQ(plain.host, "127.0.0.1");
  EXPECT_EQ(plain.port, "8000");
  EXPECT_EQ(plain.path, "");
  const HttpUrl six = parse_http_url("http://[::1]:81/proxy").value();
  EXPECT_EQ(six.host, "::1");
  EXPECT_EQ(six.port, "81");
  EXPECT_EQ(six.path, "/proxy");
  EXPECT_EQ(parse_http_url("http://[::1]").value().port, "80");
  for (const char* text : {"", "http://", "127.0.0.1:8000", "https://x", "ftp://x"})
    EXPECT_FALSE(parse_http_url(text).ok()) << text;
}

TEST(HttpClient, ReadsWholeAndChunkedBodies) {
  const test::HttpTestServer server;
  const HttpUrl url = parse_http_url("http://127.0.0.1:" + std::to_string(server.port())).value();
  const auto get = [&](const std::string& path) {
    std::string body;
    const auto status = http_call(url, {.path = path}, [&](std::string_view piece) { body += piece; });
    EXPECT_TRUE(status.ok());
    return std::pair(status.value(), body);
  };
  EXPECT_EQ(get("/hello"), std::pair(200, std::string("hello")));
  EXPECT_EQ(get("/stream?n=5").second, "0\n1\n2\n3\n4\n");
  EXPECT_EQ(get("/nothing-here").first, 404);
}

TEST(HttpClient, EndsWhenItIsToldTo) {
  const test::HttpTestServer server;
  const HttpUrl url = parse_http_url("http://127.0.0.1:" + std::to_string(server.port())).value();
  std::atomic<bool> stop{false};
  const auto status =
      http_call(url, {.path = "/flood", .stop = &stop}, [&](std::string_view) { stop = true; });
  EXPECT_EQ(status.value(), 200);
  EXPECT_FALSE(http_call({.host = "127.0.0.1", .port = "1", .path = ""}, {}, [](std::string_view) {}).ok());
}

}  // namespace
}  // namespace sparrow::cli
