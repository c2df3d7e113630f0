// SPDX-License-Identifier: Apache-2.0
// URLs and addresses with which servers are made to ask themselves.
#include "media/source/web_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "media/source/address.h"

namespace sparrow {
namespace {

using testing::HasSubstr;

WebUrl parsed(std::string_view text) {
  const auto url = parse_web_url(text);
  EXPECT_TRUE(url.ok()) << url.error().message;
  return url.ok() ? url.value() : WebUrl{};
}

TEST(WebUrl, IsReadAsItIsWritten) {
  const WebUrl plain = parsed("http://Example.COM");
  EXPECT_FALSE(plain.tls);
  EXPECT_EQ(plain.host, "example.com");
  EXPECT_EQ(plain.port, 80);
  EXPECT_EQ(plain.target, "/");
  EXPECT_EQ(plain.authority(), "example.com");
  const WebUrl full = parsed("HTTPS://a-b.c_d.example:8443/x/y.png?size=2&u=a@b#top");
  EXPECT_TRUE(full.tls);
  EXPECT_EQ(full.authority(), "a-b.c_d.example:8443");
  EXPECT_EQ(full.target, "/x/y.png?size=2&u=a@b");
  EXPECT_EQ(parsed("http://example.com?q").target, "/?q");
  EXPECT_EQ(parsed("https://example.com:443/").text(), "https://example.com/");
  EXPECT_EQ(parsed("http://127.0.0.1/").host, "127.0.0.1");
  EXPECT_TRUE(parsed("http://127.0.0.1/").is_address);
  EXPECT_EQ(parsed("http://[::FFFF:127.0.0.1]:81/").authority(), "[::ffff:127.0.0.1]:81");
  EXPECT_FALSE(parsed("http://127.0.0.1.nip.io/").is_address);
}

TEST(WebUrl, RefusesWhatParsersDisagreeAbout) {
  for (const char* url :
       {"", "example.com", "ftp://example.com/", "http:/example.com", "http:example.com", "http://",
        "http:///x", "http://user@example.com/", "http://user:pass@example.com/",
        "http://example.com@127.0.0.1/", "http://127.0.0.1:80@example.com/", "http://example.com:80:90/",
        "http://example.com:/", "http://example.com:0/", "http://example.com:65536/",
        "http://example.com:+80/", "http://example.com:8a/", "http://example.com\\@127.0.0.1/",
        "http://example.com/\r\nHost: x", "http://example.com/a b", "http://exa mple.com/",
        "http://ex\xC3\xA4mple.com/", "http://\xE2\x93\x94xample.com/", "http://example%2ecom/",
        "http://%31%32%37.0.0.1/", "http://example..com/", "http://.example.com/", "http://example.com./",
        "http://127.0.0.1./", "http://-a.example/", "http://a,b/",
        // Addresses to some, names to others.
        "http://2130706433/", "http://017700000001/", "http://0x7f000001/", "http://127.1/",
        "http://127.0.1/", "http://0177.0.0.1/", "http://0x7f.0.0.1/", "http://127.0.0.01/",
        "http://127.0.0.256/", "http://1.2.3.4.5/", "http://0/", "http://0x/", "http://example.0x7f/",
        "http://[127.0.0.1]/", "http://[::1/", "http://[::1]x/", "http://[::1%25lo]/", "http://[::1%lo]/",
        "http://::1/", "http://[]/", "http://[v1.x]/"}) {
    const auto read = parse_web_url(url);
    EXPECT_FALSE(read.ok()) << url << " is " << (read.ok() ? read->text() : "");
  }
  EXPECT_FALSE(parse_web_url("http://example.com/" + std::string(9000, 'a')).ok());
  EXPECT_FALSE(parse_web_url("http://" + std::string(300, 'a') + ".com/").ok());
  const auto secret = parse_web_url("http://user:secret@example.com/");
  ASSERT_FALSE(secret.ok());
  EXPECT_THAT(secret.error().message, testing::Not(HasSubstr("secret")));
}

TEST(WebUrl, RedirectsLeadWhereTheySay) {
  const WebUrl from = parsed("https://example.com:8443/a/b?c");
  const auto to = [&](std::string_view location) {
    const auto url = resolve_redirect(from, location);
    return url.ok() ? url->text() : "error: " + url.error().message;
  };
  EXPECT_EQ(to("https://other.org/x"), "https://other.org/x");
  EXPECT_EQ(to("//other.org/x"), "https://other.org/x");
  EXPECT_EQ(to("/x?y"), "https://example.com:8443/x?y");
  EXPECT_EQ(to("x"), "https://example.com:8443/a/x");
  EXPECT_EQ(to("x?u=http://z"), "https://example.com:8443/a/x?u=http://z");
  EXPECT_EQ(to("?x"), "https://example.com:8443/a/b?x");
  EXPECT_THAT(to("http://example.com:8443/x"), HasSubstr("from https to http"));
  EXPECT_THAT(to("file:///etc/passwd"), HasSubstr("error: "));
  EXPECT_THAT(to("gopher://127.0.0.1:70/"), HasSubstr("error: "));
  EXPECT_THAT(to("//user@example.com/"), HasSubstr("error: "));
  EXPECT_THAT(to("javascript:alert(1)"), HasSubstr("error: "));
}

TEST(AllowedDomains, AreHostsOrAllBelowOne) {
  const auto domains =
      AllowedDomains::parse({"Example.com", "*.cdn.example.org", "203.0.113.7", "2001:DB8::1"});
  ASSERT_TRUE(domains.ok()) << domains.error().message;
  for (const char* host :
       {"example.com", "a.cdn.example.org", "a.b.cdn.example.org", "203.0.113.7", "2001:db8::1"})
    EXPECT_TRUE(domains->allows(host)) << host;
  for (const char* host : {"", "www.example.com", "example.com.evil.org", "badexample.com", "cdn.example.org",
                           "xcdn.example.org", ".cdn.example.org", "203.0.113.8"})
    EXPECT_FALSE(domains->allows(host)) << host;
  EXPECT_FALSE(AllowedDomains().allows("example.com"));
  EXPECT_TRUE(AllowedDomains().empty());
  for (const char* bad : {"", "*", "*.", "*.*.com", "a.*.com", "http://example.com", "example.com/",
                          "example.com:80", "*.127.0.0.1", "127.1", "ex\xC3\xA4mple.com"}) {
    const auto refused = AllowedDomains::parse({bad});
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_EQ(refused.error().field, "allowed-media-domains");
  }
}

TEST(IpAddress, OfTheInternetIsPublic) {
  for (const char* text :
       {"1.1.1.1",         "8.8.8.8",           "93.184.216.34",   "9.255.255.255", "11.0.0.0",
        "100.63.255.255",  "100.128.0.0",       "126.255.255.255", "128.0.0.0",     "168.63.129.15",
        "169.253.255.255", "169.255.0.0",       "172.15.255.255",  "172.32.0.0",    "192.0.1.0",
        "192.167.255.255", "192.169.0.0",       "198.17.255.255",  "198.20.0.0",    "223.255.255.255",
        "2606:4700::1111", "2a00:1450:4001::1", "2001:200::1",     "2003::1"}) {
    const auto address = IpAddress::parse(text);
    ASSERT_TRUE(address.has_value()) << text;
    EXPECT_TRUE(is_public(*address)) << text;
    EXPECT_EQ(address->text(), text);
  }
}

TEST(IpAddress, ThatLeadsHomeIsNotPublic) {
  for (const char* text : {"0.0.0.0",
                           "0.1.2.3",
                           "10.0.0.1",
                           "10.255.255.255",
                           "100.64.0.0",
                           "100.100.100.200",
                           "100.127.255.255",
                           "127.0.0.1",
                           "127.255.255.255",
                           "168.63.129.16",
                           "169.254.0.1",
                           "169.254.169.254",
                           "169.254.170.2",
                           "172.16.0.0",
                           "172.31.255.255",
                           "192.0.0.192",
                           "192.0.2.1",
                           "192.88.99.1",
                           "192.168.0.1",
                           "198.18.0.1",
                           "198.19.255.255",
                           "198.51.100.1",
                           "203.0.113.1",
                           "224.0.0.1",
                           "239.255.255.255",
                           "240.0.0.1",
                           "255.255.255.255",
                           "::",
                           "::1",
                           "::7f00:1",
                           "::ffff:127.0.0.1",
                           "::ffff:8.8.8.8",
                           "::ffff:0:8.8.8.8",
                           "64:ff9b::7f00:1",
                           "64:ff9b::808:808",
                           "64:ff9b:1::1",
                           "100::1",
                           "2001::1",
                           "2001:0:4136:e378::1",
                           "2001:10::1",
                           "2001:1ff::",
                           "2001:db8::1",
                           "2002:7f00:1::",
                           "2002:808:808::1",
                           "3fff::1",
                           "5f00::1",
                           "fc00::1",
                           "fd00:ec2::254",
                           "fd20:ce::254",
                           "fe80::1",
                           "fe80::a9fe:a9fe",
                           "fec0::1",
                           "ff02::1",
                           "4000::1"}) {
    const auto address = IpAddress::parse(text);
    ASSERT_TRUE(address.has_value()) << text;
    EXPECT_FALSE(is_public(*address)) << text;
  }
}

TEST(IpAddress, HasFewSpellings) {
  for (const char* text : {"", "1.2.3", "1.2.3.4.5", "01.2.3.4", "0x1.2.3.4", "1.2.3.256", "1.2.3.4 ",
                           "::1%lo", "[::1]", "1:2:3:4:5:6:7", ":::", "localhost"})
    EXPECT_FALSE(IpAddress::parse(text).has_value()) << text;
  EXPECT_FALSE(IpAddress::parse(std::string("1.2.3.4\0", 8)).has_value());
}

}  // namespace
}  // namespace sparrow
