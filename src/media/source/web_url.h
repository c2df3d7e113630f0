// SPDX-License-Identifier: Apache-2.0
// http and https URLs of media. Of all that URLs can be, only what has one meaning for every reader: two
// parsers that disagree about the host are how a server is made to ask the wrong one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sparrow {

struct WebUrl {
  bool tls = false;
  std::string host;         // lower case; an IPv6 address without its brackets
  bool is_address = false;  // the host is an IP address
  uint16_t port = 0;
  std::string target;  // path and query; never empty

  // As the Host field has it: with brackets, and without the scheme's own port.
  std::string authority() const;
  std::string text() const;
};

// Refused by name: user names, ports that are none, hosts outside ASCII or with escapes, numbers that are
// addresses only to some (0x7f.1, 017700000001, 127.1), trailing dots, backslashes, spaces.
Result<WebUrl> parse_web_url(std::string_view text);
bool is_web_url(std::string_view text);

// Where a redirect leads. It may not leave https.
Result<WebUrl> resolve_redirect(const WebUrl& from, std::string_view location);

// Hosts that may be asked: "example.com" is that host alone, "*.example.com" all hosts below it. Empty: none.
class AllowedDomains {
 public:
  AllowedDomains() = default;
  static Result<AllowedDomains> parse(const std::vector<std::string>& domains);

  bool empty() const { return exact_.empty() && below_.empty(); }
  bool allows(const std::string& host) const;

 private:
  std::vector<std::string> exact_;
  std::vector<std::string> below_;  // ".example.com"
};

}  // namespace sparrow
