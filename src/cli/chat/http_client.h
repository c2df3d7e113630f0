// SPDX-License-Identifier: Apache-2.0
// A small HTTP/1.1 client for `sparrow chat`: one request, the body handed over as it comes.
#pragma once

#include <functional>

#include "cli/chat/connection.h"

namespace sparrow::cli {

// "http://host:8000/v1" or https.
Result<HttpUrl> parse_http_url(std::string_view text);

// A server, and how to reach it.
struct HttpServerAddress {
  HttpUrl url;
  TlsTrust trust = {};
  std::string api_key = {};
};

struct HttpCall {
  std::string method = "GET", path;  // appended to the url's
  std::string body = {};
  // Set from a signal handler: the call ends early.
  const std::atomic<bool>* stop = nullptr;
};

struct HttpAnswer {
  int status;
  bool complete;  // all of the body came; false: it was cut, or told to stop
};

// `on_body` gets the body in pieces, without the framing.
Result<HttpAnswer> http_call(const HttpServerAddress& server, const HttpCall& call,
                             const std::function<void(std::string_view)>& on_body);

}  // namespace sparrow::cli
