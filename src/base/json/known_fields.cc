// SPDX-License-Identifier: Apache-2.0
#include "base/json/known_fields.h"

#include <algorithm>

#include "base/strf.h"
#include "base/text/suggest.h"

namespace sparrow {

Status expect_fields(const Json& object, std::span<const std::string> known) {
  SPARROW_TRY(object.expect_object());
  for (size_t i = 0; i < object.size(); ++i) {
    const std::string_view key = object.key(i);
    if (std::ranges::find(known, key) != known.end()) continue;
    const std::string near = nearest_word(key, known);
    return Error{Errc::kInvalidArgument,
                 strf("{}: there is no field {}{}", object.path(), json_quoted(key.substr(0, 60)),
                      near.empty() ? "" : strf("; did you mean {}?", near))};
  }
  return Ok{};
}

}  // namespace sparrow
