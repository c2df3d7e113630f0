// SPDX-License-Identifier: Apache-2.0
// WebFetch: a picture from somebody else's server. A request decides which server is asked, so each step of
// the way is checked: the host against those that are allowed, its port, and the very addresses that are
// connected to. A name is resolved once for each step: what another question would give does not matter.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "media/media_bytes.h"
#include "media/source/address.h"
#include "media/source/web_url.h"
#include "server/fetch/fetch_peer.h"
#include "server/fetch/fetch_response.h"
#include "server/fetch/resolve.h"

namespace sparrow {

struct WebFetchOptions {
  AllowedDomains domains;  // none: nothing is fetched
  std::vector<uint16_t> ports{80, 443};
  FetchLimits limits;
  std::chrono::milliseconds time_limit{10'000};  // of all steps together
  int max_redirects = 3;
  std::string ca_file;  // empty: the system's
  // A host with one address that is not allowed is not asked at all.
  std::function<bool(const IpAddress&)> is_allowed_address = is_public;
  Resolver resolve = resolve_with_system;  // may be at work when the fetch has ended
};

class WebFetch {
 public:
  static Result<std::unique_ptr<WebFetch>> create(WebFetchOptions options);

  // Waits. Any thread, many at a time. `cancelled` may be set meanwhile.
  Result<MediaBytes> fetch(const std::string& url, const std::atomic<bool>* cancelled = nullptr) const;

 private:
  WebFetch(WebFetchOptions options, std::unique_ptr<TlsTrust> trust);
  Result<std::vector<IpAddress>> checked_addresses(const WebUrl& url, const FetchEnd& end) const;
  Result<FetchResponse> ask(const WebUrl& url, const FetchEnd& end) const;

  WebFetchOptions options_;
  std::unique_ptr<TlsTrust> trust_;
};

}  // namespace sparrow
