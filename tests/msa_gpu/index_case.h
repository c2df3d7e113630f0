// SPDX-License-Identifier: Apache-2.0
// Problems for the Hopper index kernels, held against the scalar reference. Integer-valued inputs give exact
// scores, so the selection must be identical, ties included; with other inputs two blocks whose scores differ
// by rounding may swap, in at most one row of 10,000.
#pragma once

#include <string>
#include <vector>

#include "msa/sm90/index/index.h"
#include "sm90/tensor_map.h"

namespace msa::sm90 {

struct IndexCase {
  std::string name;
  std::vector<int> queries, seq_lens;
  int heads = 1;
  Selection selection = {};
  bool integers = true;
  hopper::Element key_type = hopper::Element::kBF16;
  bool uniform = false;  // decode: no cu_seqlens_q
  int extra_blocks = 3;  // columns of the block table that no request reaches
  unsigned seed = 1;
  int replays = 3;
  // The best blocks lie 32 apart, where a selection by lanes sees only one of them.
  bool best_in_one_column = false;
  bool late_keys = false;  // the kernel ahead writes this step's keys while the scan may already run
  int shares = 1;          // of the blocks, each scored by itself
  bool all_pages = false;  // shares read one cache, otherwise each has one of its own
};

// Runs the case, compares with the reference, then replays it from a graph over poisoned outputs, workspace
// and schedule: the same bits each time.
void check_index(const IndexCase& c);

}  // namespace msa::sm90
