// SPDX-License-Identifier: Apache-2.0
// RowSum: which ranks' parts of a row are added up, and who wants the sum.
#pragma once

#include <cstdint>

namespace sparrow {

// "delta" are the parts, "normed" what is made of their sum.
enum class RowSum : uint8_t {
  kOfGroup,        // over the group, whose rows delta and normed are
  kOfGroupForAll,  // over the group, whose rows delta are; normed are the rows of all groups
  kOfAll           // over all ranks; delta are the rows of all groups and normed the group's
};

}  // namespace sparrow
