// SPDX-License-Identifier: Apache-2.0
#include "base/text/suggest.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace sparrow {
namespace {

// Insertions, deletions and replacements that turn one word into the other.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_word(std::string_view wrong, std::span<const std::string> known) {
  std::string best;
  size_t best_distance = std::max<size_t>(wrong.size() / 2, 2) + 1;
  for (const std::string& word : known) {
    const size_t distance = edit_distance(wrong, word);
    if (distance < best_distance) {
      best = word;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace sparrow
