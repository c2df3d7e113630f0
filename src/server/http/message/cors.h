// SPDX-License-Identifier: Apache-2.0
// Cross-origin requests of browsers: an origin that is not on the list gets no permission.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/http/message/message.h"

namespace sparrow {

// The fields that let a page of the request's origin read the answer; none where it is not allowed.
HttpHeaders cors_headers(const HttpRequest& request, const std::vector<std::string>& allowed_origins);

// The answer to a browser's question before a request, where the origin is allowed; nullopt for any other
// request.
std::optional<HttpResponse> cors_preflight(const HttpRequest& request,
                                           const std::vector<std::string>& allowed_origins);

}  // namespace sparrow
