// SPDX-License-Identifier: Apache-2.0
#include "comm/grid.h"

#include "base/strf.h"

namespace sparrow {

std::string describe(const Grid& grid) {
  std::string text = strf("TP{}", grid.tp);
  if (grid.dp > 1) text += strf(" x DP{}", grid.dp);
  if (grid.expert_parallel) text += ", expert-parallel";
  return text;
}

}  // namespace sparrow
