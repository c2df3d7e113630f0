// SPDX-License-Identifier: Apache-2.0
// TableEdits: block tables as changes to the tables of the step before. Tables of long contexts have
// thousands of entries and a step adds one to a few of them; sender and receiver hold the same shadow copy,
// so a row that grew or stayed costs two bytes and its new blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/ranks/wire.h"
#include "model/batch.h"

namespace sparrow {

class TableEdits {
 public:
  // Writes the batch's tables and takes them as the new shadow. Rows end with their first -1.
  void write(const Batch& batch, WireWriter& out);
  // Fills block_table and max_blocks of a batch of that many sequences. Where the reader fails, neither the
  // batch nor the shadow is of any use.
  void read(int num_sequences, int num_blocks, WireReader& in, Batch& batch);

 private:
  using Row = std::vector<int32_t>;
  // A row of the shadow that `row` begins with; -1: none.
  int find_source(const Row& row) const;
  void index_rows();

  std::vector<Row> rows_;          // of the step before
  std::vector<Row> next_;          // kept for their memory
  std::vector<int32_t> by_block_;  // [block] the shadow's row whose last one it is, or -1
};

}  // namespace sparrow
