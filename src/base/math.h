// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic that everybody needs, for non-negative numbers. Static: files for one
// instruction set include this too, and what they compile must not become everybody's.
#pragma once

#include <type_traits>

namespace sparrow {

// How many parts of size `part` hold `n`.
template <typename A, typename B>
static constexpr std::common_type_t<A, B> ceil_div(A n, B part) {
  static_assert(std::is_integral_v<A> && std::is_integral_v<B>);
  using T = std::common_type_t<A, B>;
  return (static_cast<T>(n) + static_cast<T>(part) - 1) / static_cast<T>(part);
}

// The smallest multiple of `multiple` that is not below `n`.
template <typename A, typename B>
static constexpr std::common_type_t<A, B> round_up(A n, B multiple) {
  return ceil_div(n, multiple) * static_cast<std::common_type_t<A, B>>(multiple);
}

}  // namespace sparrow
