// SPDX-License-Identifier: Apache-2.0
// Media that travel inside a request: data URLs. Read strictly, and measured before anything is decoded.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"
#include "media/media_bytes.h"

namespace sparrow {

struct DataUrl {
  std::string media_type;  // "image/png", in lower case, without parameters: what the sender says it is
  MediaBytes bytes;
};

bool is_data_url(std::string_view url);
// data:TYPE/SUBTYPE[;NAME=VALUE]...;base64,BYTES
Result<DataUrl> decode_data_url(std::string_view url, size_t max_bytes);

}  // namespace sparrow
