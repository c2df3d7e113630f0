// SPDX-License-Identifier: Apache-2.0
// Servers that send what they like, and a name server that answers as it likes.
#include "server/fetch/web_fetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>

#include "base/strf.h"
#include "server/http/http.h"
#include "support/server/fake_server.h"
#include "support/server/http_test_server.h"
#include "support/server/name_server.h"
#include "support/server/test_certificate.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

using namespace std::chrono_literals;
using test::FakeServer;
using testing::HasSubstr;

constexpr uint32_t kLoopback2 = 0x7F000002;

IpAddress address(const char* text) {
  return *IpAddress::parse(text);
}

std::string text_of(const Result<MediaBytes>& bytes) {
  if (!bytes.ok()) return "error: " + bytes.error().message;
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

FakeServer::Handler says(std::string bytes) {
  return [bytes](const FakeServer::Request&, const FakeServer::Peer& peer) { peer.send(bytes); };
}

std::string redirect_to(const std::string& location, const char* status = "302 Found") {
  return strf("HTTP/1.1 {}\r\nLocation: {}\r\nContent-Length: 0\r\n\r\n", status, location);
}

// Hosts a.test, b.test, ... are loopback, which is allowed here unless a test says otherwise.
class WebFetchTest : public testing::Test {
 protected:
  WebFetchTest() {
    test::write_certificate(cert_file_, key_file_);
    options_.ca_file = cert_file_;  // quicker to read than all of the system's
    for (const char* host : {"a.test", "b.test", "localhost"}) names_->answer(host, {{address("127.0.0.1")}});
    options_.domains = domains({"a.test", "b.test", "localhost", "127.0.0.1", "169.254.169.254"});
    options_.is_allowed_address = [](const IpAddress& a) { return a == address("127.0.0.1"); };
    options_.resolve = [names = names_](const std::string& host) { return names->resolve(host); };
    options_.time_limit = 600s;
    options_.limits = {.header_bytes = 4096, .body_bytes = 100'000};
  }
  static AllowedDomains domains(const std::vector<std::string>& hosts) {
    auto parsed = AllowedDomains::parse(hosts);
    EXPECT_TRUE(parsed.ok());
    return std::move(parsed).value();
  }
  std::string fetch(const std::string& url) {
    const auto web = WebFetch::create(options_);
    EXPECT_TRUE(web.ok());
    return text_of(web.value()->fetch(url));
  }
  std::string fetch_from(const FakeServer& server, const std::string& path = "/x.png") {
    options_.ports = {static_cast<uint16_t>(server.port())};
    return fetch(strf("http://a.test:{}{}", server.port(), path));
  }
  std::string answer_to(const std::string& bytes) {
    const FakeServer server(says(bytes));
    return fetch_from(server);
  }

  const test::TempDir dir_;
  const std::string cert_file_ = (dir_.path() / "cert.pem").string();
  const std::string key_file_ = (dir_.path() / "key.pem").string();
  // A resolver that was left behind may still ask it.
  const std::shared_ptr<test::NameServer> names_ = std::make_shared<test::NameServer>();
  WebFetchOptions options_;
};

TEST_F(WebFetchTest, GetsAPicture) {
  const FakeServer server(says(test::http_answer("200 OK", "picture", "image/png")));
  EXPECT_EQ(fetch_from(server, "/x.png?y=1#z"), "picture");
  const std::string head = server.requests().at(0).head;
  EXPECT_EQ(server.requests().at(0).line, "GET /x.png?y=1 HTTP/1.1");
  EXPECT_THAT(head, HasSubstr(strf("\r\nHost: a.test:{}\r\n", server.port())));
  EXPECT_THAT(head, HasSubstr("\r\nAccept-Encoding: identity\r\n"));
  EXPECT_EQ(names_->lookups(), 1);
}

TEST_F(WebFetchTest, ReadsChunks) {
  EXPECT_EQ(
      answer_to(
          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npict\r\n3;x=y\r\nure\r\n0\r\n\r\n"),
      "picture");
}

TEST_F(WebFetchTest, ReadsAPictureThatComesByteByByte) {
  const FakeServer server([](const FakeServer::Request&, const FakeServer::Peer& peer) {
    for (const char c : test::http_answer("200 OK", "picture")) peer.send({&c, 1});
  });
  EXPECT_EQ(fetch_from(server), "picture");
}

TEST_F(WebFetchTest, AsksNobodyByDefault) {
  const FakeServer server(says(test::http_answer("200 OK", "picture")));
  options_.domains = {};
  EXPECT_THAT(fetch_from(server), HasSubstr("not in allowed-media-domains"));
  options_.domains = domains({"b.test", "*.a.test"});
  EXPECT_THAT(fetch_from(server), HasSubstr("not in allowed-media-domains"));
  EXPECT_EQ(names_->lookups(), 0);
  EXPECT_TRUE(server.requests().empty());
}

TEST_F(WebFetchTest, AsksOnlyPortsThatAreAllowed) {
  EXPECT_THAT(fetch("http://a.test:22/"), HasSubstr("port 22 is not allowed"));
  EXPECT_EQ(WebFetchOptions().ports, (std::vector<uint16_t>{80, 443}));
}

// With the real rule no address of this machine is asked, however it is written.
TEST_F(WebFetchTest, NeverAsksAnAddressThatLeadsHome) {
  const FakeServer server(says(test::http_answer("200 OK", "secret")));
  options_.is_allowed_address = WebFetchOptions().is_allowed_address;
  options_.ports = {static_cast<uint16_t>(server.port())};
  for (const char* home :
       {"127.0.0.1", "0.0.0.0", "127.9.9.9", "10.0.0.1", "169.254.169.254", "100.64.0.1", "192.168.1.1",
        "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "fe80::1", "fd00:ec2::254"}) {
    names_->answer("a.test", {{address(home)}});
    EXPECT_THAT(fetch_from(server), HasSubstr("an address that is not public")) << home;
    // Beside a good one, too.
    names_->answer("a.test", {{address("93.184.216.34"), address(home)}});
    EXPECT_THAT(fetch_from(server), HasSubstr("an address that is not public")) << home;
    // Even where the operator allows the address as a host.
    options_.domains = domains({home, "a.test"});
    const std::string host = address(home).is_v6() ? strf("[{}]", home) : home;
    EXPECT_THAT(fetch(strf("http://{}:{}/", host, server.port())),
                HasSubstr("an address that is not public"));
  }
  EXPECT_TRUE(server.requests().empty());
}

// The name leads to an allowed server when it is checked, and elsewhere when it is asked for again.
TEST_F(WebFetchTest, AsksTheAddressThatWasChecked) {
  const FakeServer good(says(test::http_answer("200 OK", "picture")));
  const FakeServer inside(says(test::http_answer("200 OK", "secret")), kLoopback2, good.port());
  names_->answer("a.test", {{address("127.0.0.1")}, {address("127.0.0.2")}});
  EXPECT_EQ(fetch_from(good), "picture");
  EXPECT_EQ(names_->lookups(), 1);
  EXPECT_THAT(fetch_from(good), HasSubstr("an address that is not public"));  // the second answer
  EXPECT_TRUE(inside.requests().empty());
}

TEST_F(WebFetchTest, ARedirectIsCheckedLikeTheFirstStep) {
  const FakeServer inside(says(test::http_answer("200 OK", "secret")), kLoopback2);
  std::string location;
  const FakeServer server(
      [&](const FakeServer::Request&, const FakeServer::Peer& peer) { peer.send(redirect_to(location)); });
  names_->answer("b.test", {{address("127.0.0.2")}});
  options_.ports = {static_cast<uint16_t>(server.port()), static_cast<uint16_t>(inside.port()), 80};
  const auto follow = [&](const std::string& to) {
    location = to;
    return fetch(strf("http://a.test:{}/", server.port()));
  };
  EXPECT_THAT(follow(strf("http://b.test:{}/", inside.port())), HasSubstr("an address that is not public"));
  EXPECT_THAT(follow("http://169.254.169.254/latest/meta-data/"), HasSubstr("an address that is not public"));
  EXPECT_THAT(follow(strf("http://127.0.0.2:{}/", inside.port())), HasSubstr("not in allowed-media-domains"));
  EXPECT_THAT(follow("http://0x7f000002/"), HasSubstr("no IP address"));
  EXPECT_THAT(follow("http://evil.test/"), HasSubstr("not in allowed-media-domains"));
  EXPECT_THAT(follow("http://a.test:23/"), HasSubstr("port 23"));
  EXPECT_THAT(follow("file:///etc/passwd"), HasSubstr("neither http:// nor https://"));
  EXPECT_THAT(follow(""), HasSubstr("error: "));
  EXPECT_TRUE(inside.requests().empty());
  // The name itself moves between two steps.
  names_->answer("a.test", {{address("127.0.0.1")}, {address("127.0.0.2")}});
  EXPECT_THAT(follow("/again"), HasSubstr("an address that is not public"));
}

TEST_F(WebFetchTest, FollowsFewRedirects) {
  const FakeServer server([&](const FakeServer::Request& request, const FakeServer::Peer& peer) {
    const int left = std::stoi(request.line.substr(5));
    peer.send(left == 0 ? test::http_answer("200 OK", "picture")
                        : redirect_to(strf("/{}", left - 1), "307 Temporary Redirect"));
  });
  EXPECT_EQ(fetch_from(server, "/3"), "picture");
  EXPECT_THAT(fetch_from(server, "/4"), HasSubstr("more than 3 redirects"));
  EXPECT_EQ(server.requests().size(), 8u);
}

TEST_F(WebFetchTest, RefusesWhatIsTooLarge) {
  EXPECT_THAT(answer_to("HTTP/1.1 200 OK\r\nContent-Length: 100001\r\n\r\n"),
              HasSubstr("more bytes than the 100000"));
  EXPECT_THAT(answer_to("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n"),
              HasSubstr("error: "));
  const FakeServer endless([](const FakeServer::Request&, const FakeServer::Peer& peer) {
    peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    while (peer.send("1000\r\n" + std::string(0x1000, 'x') + "\r\n")) continue;
  });
  EXPECT_THAT(fetch_from(endless), HasSubstr("more bytes than the 100000"));
  const FakeServer headers([](const FakeServer::Request&, const FakeServer::Peer& peer) {
    peer.send("HTTP/1.1 200 OK\r\n");
    while (peer.send("X-A: " + std::string(100, 'x') + "\r\n")) continue;
  });
  EXPECT_THAT(fetch_from(headers), HasSubstr("too many header fields"));
  const FakeServer line([](const FakeServer::Request&, const FakeServer::Peer& peer) {
    peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;");
    while (peer.send(std::string(1000, 'x'))) continue;
  });
  EXPECT_THAT(fetch_from(line), HasSubstr("error: "));
}

TEST_F(WebFetchTest, RefusesWhatIsNotWhole) {
  for (const char* bytes : {"", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\npicture",
                            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\npicture\r\n"})
    EXPECT_THAT(answer_to(bytes), HasSubstr("closed the connection too early")) << bytes;
  EXPECT_THAT(answer_to("HTTP/1.1 200 OK\r\n\r\npicture"), HasSubstr("does not say how long it is"));
  EXPECT_EQ(answer_to("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\npicture and more"), "picture");
}

TEST_F(WebFetchTest, RefusesWhatIsNotAPicture) {
  for (const char* status : {"404 Not Found", "500 X", "204 No Content", "206 Partial Content",
                             "100 Continue", "304 Not Modified"})
    EXPECT_THAT(answer_to(test::http_answer(status, "picture")), HasSubstr("its server answers with status"))
        << status;
  for (const char* coding : {"gzip", "br", "gzip, identity", "x"})
    EXPECT_THAT(answer_to(strf("HTTP/1.1 200 OK\r\nContent-Encoding: {}\r\nContent-Length: 7\r\n\r\npicture",
                               coding)),
                HasSubstr("compresses it"));
  EXPECT_THAT(
      answer_to("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n7\r\npicture\r\n0\r\n\r\n"),
      HasSubstr("transfer coding"));
  for (const char* bytes :
       {"SSH-2.0-OpenSSH\r\n", "HTTP/2 200\r\n\r\n", "\x16\x03\x01", "picture\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nContent-Length: 8\r\n\r\npicture",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\npicture",
        "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"})
    EXPECT_THAT(answer_to(bytes), HasSubstr("error: ")) << bytes;
}

TEST_F(WebFetchTest, EndsAtItsDeadline) {
  options_.time_limit = 200ms;
  const FakeServer slow([](const FakeServer::Request&, const FakeServer::Peer& peer) {
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
    while (peer.send("x")) std::this_thread::sleep_for(10ms);
  });
  EXPECT_THAT(fetch_from(slow), HasSubstr("it took too long"));
  const FakeServer silent(
      [](const FakeServer::Request&, const FakeServer::Peer& peer) { peer.wait_until_gone(); });
  EXPECT_THAT(fetch_from(silent), HasSubstr("it took too long"));
  const FakeServer circle(says(redirect_to("/")));
  options_.max_redirects = 1'000'000'000;
  EXPECT_THAT(fetch_from(circle), HasSubstr("it took too long"));
}

// The system's resolver may take half a minute.
TEST_F(WebFetchTest, DoesNotWaitForANameServerPastItsEnd) {
  std::promise<void> ends;
  options_.resolve = [ended = ends.get_future().share()](const std::string&) {
    ended.wait();
    return Result<std::vector<IpAddress>>(Error{Errc::kInvalidArgument, "the name server ended"});
  };
  options_.time_limit = 100ms;
  EXPECT_THAT(fetch("http://a.test/"), HasSubstr("it took too long"));
  options_.time_limit = 600s;
  const auto web = WebFetch::create(options_).value();
  std::atomic<bool> cancelled = true;
  EXPECT_THAT(text_of(web->fetch("http://a.test/", &cancelled)), HasSubstr("cancelled"));
  ends.set_value();
  EXPECT_THAT(fetch("http://a.test/"), HasSubstr("the name server ended"));
}

TEST_F(WebFetchTest, SaysWhenNobodyAnswers) {
  int port = 0;
  {
    const FakeServer server(says(""));
    port = server.port();
  }
  options_.ports = {static_cast<uint16_t>(port)};
  EXPECT_THAT(fetch(strf("http://a.test:{}/", port)), HasSubstr("cannot be reached"));
  EXPECT_THAT(fetch(strf("http://127.0.0.1:{}/", port)), HasSubstr("cannot be reached"));
  names_->answer("a.test", {{}});
  EXPECT_THAT(fetch(strf("http://a.test:{}/", port)), HasSubstr("has no address"));
}

TEST_F(WebFetchTest, BelievesOnlyWhoCanProveItsName) {
  HttpServerOptions server_options = test::strict_options();
  server_options.tls_cert_file = cert_file_;
  server_options.tls_key_file = key_file_;
  test::HttpTestServer server(server_options);
  options_.ports = {static_cast<uint16_t>(server.port())};
  const std::string at_localhost = strf("https://localhost:{}/hello", server.port());
  EXPECT_THAT(fetch(at_localhost), testing::StartsWith("hello"));
  EXPECT_THAT(fetch(strf("https://a.test:{}/hello", server.port())), HasSubstr("no valid certificate"));
  EXPECT_THAT(fetch(strf("https://127.0.0.1:{}/hello", server.port())), HasSubstr("no valid certificate"));
  options_.ca_file = "";  // the system does not know it
  EXPECT_THAT(fetch(at_localhost), HasSubstr("no valid certificate"));
  options_.ca_file = "/no/such/file";
  EXPECT_FALSE(WebFetch::create(options_).ok());
}

}  // namespace
}  // namespace sparrow
