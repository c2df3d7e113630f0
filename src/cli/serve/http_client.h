// SPDX-License-Identifier: Apache-2.0
// A small HTTP/1.1 client for `sparrow chat`: one request, the body handed over as it comes. http only.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sparrow::cli {

struct HttpUrl {
  std::string host, port, path;  // path: without a slash at its end
};

// "http://host:8000/v1"; https is refused with a hint.
Result<HttpUrl> parse_http_url(std::string_view text);

struct HttpCall {
  std::string method = "GET", path;  // appended to the url's
  std::string body;
  std::string api_key;
  // Set from a signal handler: the call ends early, as if the answer were over.
  const std::atomic<bool>* stop = nullptr;
};

// Returns the status. `on_body` gets the body in pieces, without the framing.
Result<int> http_call(const HttpUrl& url, const HttpCall& call,
                      const std::function<void(std::string_view)>& on_body);

}  // namespace sparrow::cli
