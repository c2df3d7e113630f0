// SPDX-License-Identifier: Apache-2.0
// strf: type-checked formatting in fmt's syntax. Only strf.cc compiles fmt itself, so this header stays
// cheap.
#pragma once

#include <fmt/core.h>

#include <string>

namespace sparrow {

std::string vstrf(fmt::string_view format, fmt::format_args args);

template <typename... Args>
std::string strf(fmt::format_string<Args...> format, Args&&... args) {
  return vstrf(format, fmt::make_format_args(args...));
}

}  // namespace sparrow
