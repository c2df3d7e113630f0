// SPDX-License-Identifier: Apache-2.0
#include "server/fetch/web_fetch.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "base/strf.h"
#include "base/utf8.h"

namespace sparrow {
namespace {

Error refused(std::string message) {
  return {Errc::kInvalidArgument, std::move(message)};
}

// No cookies, no keys, nothing of the request that names the URL.
std::string request_for(const WebUrl& url) {
  return strf(
      "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: sparrow\r\nAccept: image/*, video/*, */*;q=0.1\r\n"
      "Accept-Encoding: identity\r\nConnection: close\r\n\r\n",
      url.target, url.authority());
}

// Who resolves a name cannot be told to stop. So that is done by a thread for which nobody waits past the
// end.
Result<std::vector<IpAddress>> resolve_in_time(const Resolver& resolve, const std::string& host,
                                               const FetchEnd& end) {
  constexpr std::chrono::milliseconds kSlice{50};  // how long a cancelled one goes on at most
  std::promise<Result<std::vector<IpAddress>>> promise;
  auto answer = promise.get_future();
  try {
    std::thread([resolve, host, promise = std::move(promise)]() mutable {
      promise.set_value(resolve(host));
    }).detach();
  } catch (const std::system_error& error) {
    return Error{Errc::kIo, strf("fetching media, thread: {}", error.what())};
  }
  while (answer.wait_until(std::min(end.deadline, std::chrono::steady_clock::now() + kSlice)) !=
         std::future_status::ready)
    SPARROW_TRY(end.check());
  return answer.get();
}

}  // namespace

Result<std::unique_ptr<WebFetch>> WebFetch::create(WebFetchOptions options) {
  auto trust = SPARROW_TRY(TlsTrust::load(options.ca_file));
  return std::unique_ptr<WebFetch>(new WebFetch(std::move(options), std::move(trust)));
}

WebFetch::WebFetch(WebFetchOptions options, std::unique_ptr<TlsTrust> trust)
    : options_(std::move(options)), trust_(std::move(trust)) {}

Result<std::vector<IpAddress>> WebFetch::checked_addresses(const WebUrl& url, const FetchEnd& end) const {
  std::vector<IpAddress> addresses;
  if (url.is_address)
    addresses.push_back(*IpAddress::parse(url.host));
  else
    addresses = SPARROW_TRY(resolve_in_time(options_.resolve, url.host, end));
  if (addresses.empty()) return refused("its host has no address");
  // Which address it is stays here: a stranger could map the network by asking.
  if (!std::ranges::all_of(addresses, options_.is_allowed_address))
    return refused("its host has an address that is not public");
  return addresses;
}

Result<FetchResponse> WebFetch::ask(const WebUrl& url, const FetchEnd& end) const {
  if (!options_.domains.allows(url.host)) return refused("its host is not in allowed-media-domains");
  if (std::ranges::find(options_.ports, url.port) == options_.ports.end())
    return refused(strf("port {} is not allowed", url.port));
  const std::vector<IpAddress> addresses = SPARROW_TRY(checked_addresses(url, end));
  FetchPeer peer = SPARROW_TRY(FetchPeer::connect(addresses, url.port, end));
  if (url.tls) SPARROW_TRY(peer.secure(*trust_, url.host, url.is_address));
  SPARROW_TRY(peer.send(request_for(url)));
  FetchResponse response(options_.limits);
  std::array<char, 16 << 10> buffer;
  while (!response.is_done()) {
    const size_t size = SPARROW_TRY(peer.read(buffer));
    if (size == 0) return refused("its server closed the connection too early");
    SPARROW_TRY(response.feed({buffer.data(), size}));
  }
  return response;
}

Result<MediaBytes> WebFetch::fetch(const std::string& text, const std::atomic<bool>* cancelled) const {
  const FetchEnd end{std::chrono::steady_clock::now() + options_.time_limit, cancelled};
  WebUrl url = SPARROW_TRY(parse_web_url(text));
  const auto named = [&](const Error& error) {
    return Error{error.code, strf("URL {}: {}", excerpt(url.text()), error.message)};
  };
  for (int redirects = 0; redirects <= options_.max_redirects; ++redirects) {
    Result<FetchResponse> response = ask(url, end);
    if (!response.ok()) return named(response.error());
    if (!response->is_redirect()) return response->take_body();
    url = SPARROW_TRY(resolve_redirect(url, response->location()));
  }
  return named(refused(strf("more than {} redirects", options_.max_redirects)));
}

}  // namespace sparrow
