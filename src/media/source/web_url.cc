// SPDX-License-Identifier: Apache-2.0
#include "media/source/web_url.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/strf.h"
#include "base/utf8.h"
#include "media/source/address.h"
#include "media/source/ascii.h"

namespace sparrow {
namespace {

constexpr size_t kMaxUrlBytes = 8192, kMaxHostBytes = 253, kMaxLabelBytes = 63;
constexpr uint16_t kHttpPort = 80, kHttpsPort = 443;

Error invalid(std::string_view url, std::string_view why) {
  return {Errc::kInvalidArgument, strf("URL {}: {}", excerpt(replace_invalid_utf8(url)), why)};
}

bool is_label(std::string_view label) {
  return !label.empty() && label.size() <= kMaxLabelBytes && label.front() != '-' && label.back() != '-' &&
         std::ranges::all_of(label, [](char c) { return is_alphanumeric(c) || c == '-' || c == '_'; });
}

// "7", "0x7f", "017": some take a host that ends so for an address.
bool is_number(std::string_view label) {
  if (label.starts_with("0x")) return true;
  return std::ranges::all_of(label, is_digit);
}

// What is wrong with a host, in lower case and without brackets; nullopt: nothing.
std::optional<std::string_view> fault_of_name(std::string_view host) {
  if (host.empty()) return "it has no host";
  if (host.size() > kMaxHostBytes) return "its host is too long";
  if (host.ends_with('.')) return "its host ends with a dot";
  std::string_view label;
  for (std::string_view rest = host; !rest.empty();) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    label = rest.substr(0, dot);
    if (!is_label(label)) return "its host is no name (write international ones as xn--...)";
    rest.remove_prefix(std::min(dot + 1, rest.size()));
  }
  if (is_number(label)) return "its host is a number and no IP address";
  return std::nullopt;
}

struct Authority {
  std::string_view host;
  std::optional<std::string_view> port;
  bool brackets = false;
};

std::optional<Authority> split_authority(std::string_view text) {
  Authority result;
  std::string_view rest;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == text.npos) return std::nullopt;
    result.brackets = true;
    result.host = text.substr(1, end - 1);
    rest = text.substr(end + 1);
  } else {
    const size_t colon = std::min(text.find(':'), text.size());
    result.host = text.substr(0, colon);
    rest = text.substr(colon);
  }
  if (rest.empty()) return result;
  if (rest.front() != ':') return std::nullopt;
  result.port = rest.substr(1);
  return result;
}

std::optional<uint16_t> port_of(std::string_view text) {
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port == 0 || !is_digit(text.front()))
    return std::nullopt;
  return port;
}

// Sets the host; what is wrong with it otherwise.
std::optional<std::string_view> take_host(const Authority& authority, WebUrl& url) {
  url.host = lower(authority.host);
  const std::optional<IpAddress> address = IpAddress::parse(url.host);
  url.is_address = address.has_value();
  if (authority.brackets) {
    if (!address || !address->is_v6()) return "there is no IPv6 address in the brackets";
    url.host = address->text();  // one spelling
    return std::nullopt;
  }
  if (address) return std::nullopt;
  return fault_of_name(url.host);
}

}  // namespace

bool is_web_url(std::string_view text) {
  const std::string start = lower(text.substr(0, 8));
  return start.starts_with("http://") || start.starts_with("https://");
}

Result<WebUrl> parse_web_url(std::string_view text) {
  if (text.size() > kMaxUrlBytes) return invalid(text, strf("longer than {} bytes", kMaxUrlBytes));
  if (!is_web_url(text)) return invalid(text, "neither http:// nor https://");
  for (const char c : text)
    if (c <= ' ' || c > '~' || c == '\\') return invalid(text, "it has a character that must be escaped");
  WebUrl url{.tls = lower(text[4]) == 's'};
  std::string_view rest = text.substr(url.tls ? 8 : 7);
  rest = rest.substr(0, rest.find('#'));
  const size_t end = std::min(rest.find_first_of("/?"), rest.size());
  const std::string_view authority = rest.substr(0, end);
  if (authority.find('@') != authority.npos) return invalid("with a user name", "that is not allowed");
  const std::optional<Authority> parts = split_authority(authority);
  if (!parts) return invalid(text, "its host cannot be read");
  if (const auto fault = take_host(*parts, url)) return invalid(text, *fault);
  url.port = url.tls ? kHttpsPort : kHttpPort;
  if (parts->port) {
    const std::optional<uint16_t> port = parts->port->empty() ? std::nullopt : port_of(*parts->port);
    if (!port) return invalid(text, "its port is not a number from 1 to 65535");
    url.port = *port;
  }
  const std::string_view target = rest.substr(end);
  url.target = target.starts_with('/') ? std::string(target) : "/" + std::string(target);
  return url;
}

std::string WebUrl::authority() const {
  std::string result = host.find(':') == host.npos ? host : "[" + host + "]";
  if (port != (tls ? kHttpsPort : kHttpPort)) result += strf(":{}", port);
  return result;
}

std::string WebUrl::text() const {
  return strf("{}://{}{}", tls ? "https" : "http", authority(), target);
}

Result<WebUrl> resolve_redirect(const WebUrl& from, std::string_view location) {
  const std::string origin = strf("{}://{}", from.tls ? "https" : "http", from.authority());
  std::string absolute(location);
  const size_t colon = location.find_first_of(":/?#");
  const bool has_scheme = colon != location.npos && location[colon] == ':';
  if (location.starts_with("//")) {
    absolute = (from.tls ? "https:" : "http:") + absolute;
  } else if (location.starts_with('/')) {
    absolute = origin + absolute;
  } else if (!has_scheme) {
    const std::string path = from.target.substr(0, from.target.find('?'));
    const bool is_query = location.starts_with('?');
    absolute = origin + (is_query ? path : path.substr(0, path.rfind('/') + 1)) + absolute;
  }
  WebUrl to = SPARROW_TRY(parse_web_url(absolute));
  if (from.tls && !to.tls) return invalid(to.text(), "a redirect from https to http");
  return to;
}

Result<AllowedDomains> AllowedDomains::parse(const std::vector<std::string>& domains) {
  AllowedDomains result;
  for (const std::string& domain : domains) {
    const bool below = domain.starts_with("*.");
    const std::string host = lower(below ? domain.substr(2) : domain);
    const std::optional<IpAddress> address = IpAddress::parse(host);
    const bool fine = address ? !below : !fault_of_name(host).has_value();
    if (!fine)
      return Error{
          Errc::kInvalidArgument,
          strf("allowed-media-domains has \"{}\", which is neither a host name nor *. and one", domain),
          "allowed-media-domains"};
    if (below)
      result.below_.push_back("." + host);
    else
      result.exact_.push_back(address ? address->text() : host);
  }
  return result;
}

bool AllowedDomains::allows(const std::string& host) const {
  return std::ranges::find(exact_, host) != exact_.end() ||
         std::ranges::any_of(
             below_, [&](const std::string& end) { return host.size() > end.size() && host.ends_with(end); });
}

}  // namespace sparrow
