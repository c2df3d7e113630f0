// SPDX-License-Identifier: Apache-2.0
// Any bytes as the URL of a picture. What is taken must keep its promises, and mean the same when it is read
// again.
#include <arpa/inet.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/text/base64.h"
#include "media/source/address.h"
#include "media/source/data_url.h"
#include "media/source/local_media.h"
#include "media/source/web_url.h"

namespace {

using namespace sparrow;

constexpr size_t kMaxBytes = 1000;

std::string base64_of(const MediaBytes& bytes) {
  return to_base64({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

void check_data_url(std::string_view text) {
  if (const auto bytes = decode_base64(text, kMaxBytes); bytes.ok())
    SPARROW_CHECK(base64_of(bytes.value()) == text);  // one spelling for the same bytes
  const auto url = decode_data_url(text, kMaxBytes);
  if (!url.ok()) return;
  SPARROW_CHECK_LE(url->bytes.size(), kMaxBytes);
  SPARROW_CHECK(url->media_type.find('/') != std::string::npos);
  SPARROW_CHECK(text.ends_with("," + base64_of(url->bytes)));
}

void check_web_url(const WebUrl& url) {
  for (const char c : url.text()) SPARROW_CHECK(c > ' ' && c <= '~' && c != '\\');
  SPARROW_CHECK(url.host.find_first_of("@/?#%[]") == std::string::npos);
  SPARROW_CHECK(url.target.starts_with('/') && url.port != 0);
  SPARROW_CHECK(url.is_address == IpAddress::parse(url.host).has_value());
  // No resolver takes a name for a number.
  in_addr number{};
  SPARROW_CHECK(url.is_address || ::inet_aton(url.host.c_str(), &number) == 0);
  const auto again = parse_web_url(url.text());
  SPARROW_CHECK(again.ok() && again->text() == url.text() && again->host == url.host);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_data_url(text);
  if (const auto url = parse_web_url(text); url.ok()) check_web_url(url.value());
  const auto from = parse_web_url("https://example.com:8443/a/b?c");
  if (const auto url = resolve_redirect(from.value(), text); url.ok()) {
    check_web_url(url.value());
    SPARROW_CHECK(url->tls);
  }
  if (const auto path = path_of_file_url(text); path.ok())
    SPARROW_CHECK(path->starts_with('/') && path->find('\0') == std::string::npos);
  if (const auto domains = AllowedDomains::parse({std::string(text)}); domains.ok())
    SPARROW_CHECK(!domains->empty() && !domains->allows("") && !domains->allows("."));
  return 0;
}
