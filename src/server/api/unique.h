// SPDX-License-Identifier: Apache-2.0
// Ids that no other answer, call or item has. Clients tell these apart by their ids alone, over all that they
// ever asked.
#pragma once

#include <random>
#include <string>

#include "base/strf.h"

namespace sparrow {

// OpenAI takes 40 characters back, of which this leaves room for a prefix and the numbers of choice and call.
inline std::string new_unique() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return strf("{:016x}{:04x}", random(), random() & 0xffff);
}

}  // namespace sparrow
