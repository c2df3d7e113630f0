// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <fstream>

#include "support/server/http_test_server.h"
#include "support/server/test_certificate.h"
#include "support/temp_dir.h"

namespace sparrow::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::EndsWith;
using testing::HasSubstr;

class HttpTls : public testing::Test {
 protected:
  HttpTls() { write_certificate(cert, key); }

  HttpServerOptions options() const {
    HttpServerOptions made = strict_options();
    made.tls_cert_file = cert;
    made.tls_key_file = key;
    return made;
  }
  std::string start_error(const std::string& cert_file, const std::string& key_file) const {
    HttpServerOptions made = strict_options();
    made.tls_cert_file = cert_file;
    made.tls_key_file = key_file;
    auto server = HttpServer::start(made, [](Exchange&) -> net::awaitable<void> { co_return; });
    return server.ok() ? "" : server.error().message;
  }

  TempDir dir;
  std::string cert = (dir.path() / "cert.pem").string(), key = (dir.path() / "key.pem").string();
};

TEST_F(HttpTls, AnswersOverTls) {
  HttpTestServer server(options());
  const TlsAnswer answer = ask_over_tls(server.port(), get_request("/hello", "Connection: close\r\n"));
  EXPECT_TRUE(answer.handshake);
  EXPECT_EQ(answer.version, "TLSv1.3");
  EXPECT_EQ(answer.protocol, "http/1.1");
  EXPECT_THAT(answer.bytes, EndsWith("hello"));
  EXPECT_THAT(server.server().url(), HasSubstr("https://"));
}

TEST_F(HttpTls, MovesLargeBodiesBothWays) {
  HttpTestServer server(options());
  const std::string body(60'000, 'x');
  EXPECT_THAT(ask_over_tls(server.port(), post_request("/echo", body, "Connection: close\r\n")).bytes,
              EndsWith(body));
  EXPECT_GT(ask_over_tls(server.port(), get_request("/big", "Connection: close\r\n")).bytes.size(),
            size_t{8} << 20);
}

TEST_F(HttpTls, AnswersSeveralRequestsOfOneRecord) {
  HttpTestServer server(options());
  const std::string requests =
      get_request("/hello") + get_request("/stream?n=2") + get_request("/echo?last", "Connection: close\r\n");
  EXPECT_THAT(ask_over_tls(server.port(), requests).bytes, EndsWith("GET\n/echo\nlast\n"));
}

TEST_F(HttpTls, RefusesVersionsBefore12) {
  HttpTestServer server(options());
  EXPECT_FALSE(ask_over_tls(server.port(), "", TLS1_VERSION, TLS1_1_VERSION).handshake);
  EXPECT_EQ(ask_over_tls(server.port(), get_request("/hello", "Connection: close\r\n"), TLS1_2_VERSION,
                         TLS1_2_VERSION)
                .version,
            "TLSv1.2");
}

TEST_F(HttpTls, ClosesOnPlainHttpAndNoiseAndSilence) {
  HttpServerOptions impatient = options();
  impatient.limits.header_time = milliseconds(500);
  HttpTestServer server(impatient);
  RawClient plain = server.connect(), noise = server.connect(), silent = server.connect();
  ASSERT_TRUE(plain.send(get_request("/hello")));
  ASSERT_TRUE(noise.send(std::string(1000, '\xff')));
  plain.read_all(kPatience);
  noise.read_all(kPatience);
  EXPECT_TRUE(plain.is_closed_within(seconds(0)));
  EXPECT_TRUE(noise.is_closed_within(seconds(0)));
  EXPECT_TRUE(silent.is_closed_within(kPatience));
  EXPECT_EQ(server.handlers_started, 0);
  EXPECT_TRUE(ask_over_tls(server.port(), get_request("/hello", "Connection: close\r\n")).handshake);
}

TEST_F(HttpTls, ReadsItsFilesAgainAndKeepsTheOldOnesWhereTheNewAreOfNoUse) {
  HttpTestServer server(options());
  const auto shown = [&] {
    const TlsAnswer answer = ask_over_tls(server.port(), get_request("/hello", "Connection: close\r\n"));
    EXPECT_THAT(answer.bytes, EndsWith("hello"));
    return answer.certificate;
  };
  const std::string first = shown();
  EXPECT_EQ(shown(), first);
  std::ofstream(cert) << "not a certificate\n";
  EXPECT_THAT(server.server().reload_tls().error().message, HasSubstr(cert));
  EXPECT_EQ(shown(), first);
  write_certificate(cert, key);
  EXPECT_EQ(shown(), first);  // nobody has said so yet
  ASSERT_TRUE(server.server().reload_tls().ok());
  EXPECT_NE(shown(), first);
}

TEST_F(HttpTls, ExplainsFilesThatItCannotUse) {
  const std::string other_cert = (dir.path() / "other.pem").string(),
                    other_key = (dir.path() / "otherkey.pem").string();
  write_certificate(other_cert, other_key);
  const std::string junk = (dir.path() / "junk").string();
  std::ofstream(junk) << "not a certificate\n";
  EXPECT_EQ(start_error(cert, key), "");
  EXPECT_THAT(start_error(cert, ""), HasSubstr("both ssl-certfile and ssl-keyfile"));
  EXPECT_THAT(start_error("/no/cert.pem", key), HasSubstr("ssl-certfile /no/cert.pem is not a file"));
  EXPECT_THAT(start_error(cert, "/no/key.pem"), HasSubstr("ssl-keyfile /no/key.pem is not a file"));
  EXPECT_THAT(start_error(junk, key), HasSubstr("holds no PEM certificate"));
  EXPECT_THAT(start_error(cert, junk), HasSubstr("holds no PEM private key"));
  EXPECT_THAT(start_error(cert, other_key), HasSubstr("does not belong to the certificate"));
}

}  // namespace
}  // namespace sparrow::test
