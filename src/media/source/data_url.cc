// SPDX-License-Identifier: Apache-2.0
#include "media/source/data_url.h"

#include <algorithm>

#include "base/strf.h"
#include "base/text/base64.h"
#include "base/utf8.h"
#include "media/source/ascii.h"

namespace sparrow {
namespace {

constexpr size_t kMaxTypeBytes = 256;  // of all that stands before the comma

Error invalid(std::string message) {
  return {Errc::kInvalidArgument, std::move(message)};
}

// What media types are made of.
bool is_token(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return is_alphanumeric(c) || kMarks.find(c) != std::string_view::npos;
  });
}

// TYPE/SUBTYPE, in lower case; empty: it is none.
std::string media_type(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == text.npos || !is_token(text.substr(0, slash)) || !is_token(text.substr(slash + 1))) return "";
  return lower(text);
}

}  // namespace

bool is_data_url(std::string_view url) {
  return lower(url.substr(0, 5)) == "data:";
}

Result<DataUrl> decode_data_url(std::string_view url, size_t max_bytes) {
  if (!is_data_url(url)) return invalid("not a data URL");
  url.remove_prefix(5);
  const size_t comma = url.substr(0, kMaxTypeBytes).find(',');
  if (comma == url.npos) return invalid("a data URL without a comma after its media type");
  std::string_view head = url.substr(0, comma);
  const size_t last = head.rfind(';');
  if (last == head.npos || lower(head.substr(last + 1)) != "base64")
    return invalid("a data URL must end its media type with \";base64\"");
  head = head.substr(0, last);
  const size_t parameters = std::min(head.find(';'), head.size());
  DataUrl result{.media_type = media_type(head.substr(0, parameters))};
  if (result.media_type.empty())
    return invalid(strf("a data URL must have a media type, such as image/png, got \"{}\"",
                        excerpt(replace_invalid_utf8(head.substr(0, parameters)), 64)));
  result.bytes = SPARROW_TRY(decode_base64(url.substr(comma + 1), max_bytes));
  return result;
}

}  // namespace sparrow
