// SPDX-License-Identifier: Apache-2.0
#define FMT_HEADER_ONLY
#include "base/strf.h"

#include <fmt/format.h>

namespace sparrow {

std::string vstrf(fmt::string_view format, fmt::format_args args) {
  return fmt::vformat(format, args);
}

}  // namespace sparrow
