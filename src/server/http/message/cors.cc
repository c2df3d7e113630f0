// SPDX-License-Identifier: Apache-2.0
#include "server/http/message/cors.h"

#include <algorithm>

namespace sparrow {

HttpHeaders cors_headers(const HttpRequest& request, const std::vector<std::string>& allowed_origins) {
  HttpHeaders headers;
  if (allowed_origins.empty()) return headers;
  const auto allows = [&](std::string_view origin) {
    return std::find(allowed_origins.begin(), allowed_origins.end(), origin) != allowed_origins.end();
  };
  const std::string* origin = request.headers.find("Origin");
  if (!origin) return headers;
  if (allows("*")) {
    headers.add("Access-Control-Allow-Origin", "*");
  } else if (allows(*origin)) {
    headers.add("Access-Control-Allow-Origin", *origin);
    headers.add("Vary", "Origin");
  } else {
    return headers;
  }
  headers.add("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  return headers;
}

std::optional<HttpResponse> cors_preflight(const HttpRequest& request,
                                           const std::vector<std::string>& allowed_origins) {
  if (request.method != "OPTIONS" || !request.headers.find("Access-Control-Request-Method"))
    return std::nullopt;
  if (cors_headers(request, allowed_origins).size() == 0) return std::nullopt;
  HttpResponse response{.status = 204, .content_type = ""};
  response.headers.add("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
  // Clients of this API send fields of their own, which change from version to version.
  if (const std::string* wanted = request.headers.find("Access-Control-Request-Headers"))
    response.headers.add("Access-Control-Allow-Headers", *wanted);
  response.headers.add("Access-Control-Max-Age", "600");
  return response;
}

}  // namespace sparrow
