// SPDX-License-Identifier: Apache-2.0
// SPARROW_CHECK: programmer errors. Always on; prints what failed and aborts. User input must never reach
// one.
#pragma once

#include <string>

#include "base/strf.h"

namespace sparrow {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& detail);

}  // namespace sparrow

#define SPARROW_CHECK(condition)                                                   \
  do {                                                                             \
    if (!(condition)) ::sparrow::check_failed(__FILE__, __LINE__, #condition, ""); \
  } while (false)

#define SPARROW_CHECK_OP_(op, a, b)                                                  \
  do {                                                                               \
    const auto& check_a_ = (a);                                                      \
    const auto& check_b_ = (b);                                                      \
    if (!(check_a_ op check_b_))                                                     \
      ::sparrow::check_failed(__FILE__, __LINE__, #a " " #op " " #b,                 \
                              ::sparrow::strf("{} against {}", check_a_, check_b_)); \
  } while (false)

#define SPARROW_CHECK_EQ(a, b) SPARROW_CHECK_OP_(==, a, b)
#define SPARROW_CHECK_LE(a, b) SPARROW_CHECK_OP_(<=, a, b)
#define SPARROW_CHECK_LT(a, b) SPARROW_CHECK_OP_(<, a, b)
