// SPDX-License-Identifier: Apache-2.0
// Writes the heads of responses and the frames of chunked ones.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/message/message.h"

namespace sparrow {

struct ResponseHead {
  int status;
  std::string_view content_type;         // empty: no such field
  std::optional<size_t> content_length;  // nullopt: chunked, or until the connection closes
  bool chunked = false;
  bool keep_alive = true;
  bool to_http_1_0 = false;
  std::string_view request_id;
  std::string_view date;
};

// Control characters in values become spaces: what a handler passes on can never start another field.
void append_response_head(std::string& out, const ResponseHead& head, const HttpHeaders& headers,
                          const HttpHeaders& more_headers);

// `chunk` must not be empty: an empty one ends the body.
void append_chunk(std::string& out, std::string_view chunk);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

// "Sun, 06 Nov 1994 08:49:37 GMT"
std::string http_date(std::time_t seconds);

}  // namespace sparrow
