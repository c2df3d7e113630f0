// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks/table_edits.h"

#include <algorithm>

namespace sparrow {

// The last block of a sequence is its own but for moments, so it tells the sequence from its neighbours, and
// first blocks, which many share, do not.
void TableEdits::index_rows() {
  for (const Row& row : next_)  // what was the shadow until now
    if (!row.empty()) by_block_[row.back()] = -1;
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (rows_[r].empty()) continue;
    const auto last = static_cast<size_t>(rows_[r].back());
    if (last >= by_block_.size()) by_block_.resize(last + 1, -1);
    by_block_[last] = static_cast<int32_t>(r);
  }
}

int TableEdits::find_source(const Row& row) const {
  for (size_t end = row.size(); end > 0; --end) {
    const auto block = static_cast<size_t>(row[end - 1]);
    if (block >= by_block_.size() || by_block_[block] < 0) continue;
    const Row& source = rows_[by_block_[block]];
    if (source.size() == end && std::equal(source.begin(), source.end(), row.begin()))
      return by_block_[block];
  }
  return -1;
}

void TableEdits::write(const Batch& batch, WireWriter& out) {
  next_.resize(batch.num_sequences());
  for (int s = 0; s < batch.num_sequences(); ++s) {
    const auto begin = batch.block_table.begin() + int64_t{s} * batch.max_blocks;
    Row& row = next_[s];
    row.assign(begin, std::find(begin, begin + batch.max_blocks, -1));
    const int source = find_source(row);
    const size_t kept = source >= 0 ? rows_[source].size() : 0;
    out.number(static_cast<uint64_t>(source + 1));
    out.ids(std::span(row).subspan(kept));
  }
  rows_.swap(next_);
  index_rows();
}

void TableEdits::read(int num_sequences, int num_blocks, WireReader& in, Batch& batch) {
  next_.resize(num_sequences);
  size_t longest = 0;
  for (Row& row : next_) {
    const size_t source = in.number(rows_.size());
    row = source > 0 ? rows_[source - 1] : Row();
    const std::vector<int32_t> added = in.ids(num_blocks);
    row.insert(row.end(), added.begin(), added.end());
    in.require(row.size() <= static_cast<size_t>(num_blocks));
    if (in.failed()) return;
    longest = std::max(longest, row.size());
  }
  rows_.swap(next_);
  batch.max_blocks = static_cast<int>(longest);
  batch.block_table.assign(static_cast<size_t>(num_sequences) * longest, -1);
  for (int s = 0; s < num_sequences; ++s)
    std::copy(rows_[s].begin(), rows_[s].end(),
              batch.block_table.begin() + static_cast<int64_t>(s * longest));
}

}  // namespace sparrow
