// SPDX-License-Identifier: Apache-2.0
// Errors in the shape of the API that was asked: clients read no other.
#pragma once

#include <string>

#include "server/http/message/message.h"

namespace sparrow {

// Anthropic's clients say so in a header, and only they ask below /v1/messages; all others get OpenAI's.
bool asks_anthropic(const HttpRequest& request);

HttpResponse error_response_to(const HttpRequest& request, const ApiError& error);

// {"type":"error","error":{"type":...,"message":...},"request_id":...}
std::string anthropic_error_json(const ApiError& error, std::string_view request_id);

}  // namespace sparrow
