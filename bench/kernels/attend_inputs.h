// SPDX-License-Identifier: Apache-2.0
// Selections for the attend benchmarks: every query chooses its own block and up to 15 others before it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace bench {

// Independent: each query draws afresh. Correlated: it keeps its predecessor's but for two. Identical: it
// keeps them all.
enum class Pattern { kIndependent, kCorrelated, kIdentical };

struct SelectionShape {
  int kv_heads, batch, queries, context;
  Pattern pattern;
};

struct Selection {
  std::vector<int32_t> selected;    // [batch * queries, kv_heads, 16]
  int64_t pairs = 0, distinct = 0;  // (query, KV head, block) chosen; different (KV head, block) among them
};

inline void choose_blocks(int own, Pattern pattern, std::mt19937& rng, std::vector<int>& chosen) {
  const int wanted = std::min(15, own);
  const auto fresh = [&] {
    int block = 0;
    do block = static_cast<int>(rng() % own);
    while (std::find(chosen.begin(), chosen.end(), block) != chosen.end());
    return block;
  };
  if (pattern == Pattern::kIndependent) chosen.clear();
  if (pattern == Pattern::kCorrelated && wanted < own && !chosen.empty())
    for (int i = 0; i < 2; ++i) {
      const int block = fresh();
      chosen[rng() % chosen.size()] = block;
    }
  while (static_cast<int>(chosen.size()) < wanted) chosen.push_back(fresh());
}

inline Selection make_selection(const SelectionShape& c, uint32_t seed) {
  Selection in;
  std::mt19937 rng(seed);
  in.selected.assign(size_t(c.batch) * c.queries * c.kv_heads * 16, -1);
  std::vector<char> seen;
  for (int r = 0; r < c.batch; ++r)
    for (int head = 0; head < c.kv_heads; ++head) {
      seen.assign(c.context / 128 + 1, 0);
      std::vector<int> chosen;
      for (int i = 0; i < c.queries; ++i) {
        const int own = (c.context - c.queries + i) / 128;
        choose_blocks(own, c.pattern, rng, chosen);
        int32_t* out = in.selected.data() + (size_t(r * c.queries + i) * c.kv_heads + head) * 16;
        std::copy(chosen.begin(), chosen.end(), out);
        out[chosen.size()] = own;
        std::sort(out, out + chosen.size() + 1);
        in.pairs += static_cast<int64_t>(chosen.size()) + 1;
        for (size_t k = 0; k <= chosen.size(); ++k) seen[out[k]] = 1;
      }
      in.distinct += std::count(seen.begin(), seen.end(), 1);
    }
  return in;
}

}  // namespace bench
