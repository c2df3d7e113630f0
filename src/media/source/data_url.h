// SPDX-License-Identifier: Apache-2.0
// Media that travel inside a request: data URLs and plain base64. Read strictly, and measured before anything
// is decoded.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"
#include "media/media_bytes.h"

namespace sparrow {

// RFC 4648: its alphabet, padding, no spaces, no bits left over. Nothing else has one meaning only.
Result<MediaBytes> decode_base64(std::string_view text, size_t max_bytes);

struct DataUrl {
  std::string media_type;  // "image/png", in lower case, without parameters: what the sender says it is
  MediaBytes bytes;
};

bool is_data_url(std::string_view url);
// data:TYPE/SUBTYPE[;NAME=VALUE]...;base64,BYTES
Result<DataUrl> decode_data_url(std::string_view url, size_t max_bytes);

}  // namespace sparrow
