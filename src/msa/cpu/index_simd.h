// SPDX-License-Identifier: Apache-2.0
// Index scores over plain vectors: C = Q K^T a panel of keys at a time, and a running maximum for each column
// of the task in as many lanes as a vector has.
#pragma once

#include "msa/common/panels.h"
#include "msa/cpu/kernels.h"

namespace msa {

template <typename V, typename T>
struct SimdIndex : Panels<V, T> {
  using Panel = Panels<V, T>;
  using F = typename V::F;
  using Panel::kElements, Panel::kLanes, Panel::kPanels, Panel::kSteps, Panel::kWidth;
  static constexpr float kMinusInfinity = -__builtin_inff();

  struct ScoreScratch {
    alignas(64) float q[kScoreColumns * kHeadDim];
    alignas(64) float panel[kElements];
    alignas(64) float best[kScoreColumns][kLanes];
  };
  static_assert(sizeof(ScoreScratch) <= kScratchBytes);

  // Keys of a block that a query sees which stands `after` positions behind the block's first key.
  static int visible(int64_t after) {
    if (after < 0) return 0;
    return after >= kBlock ? kBlock : static_cast<int>(after) + 1;
  }

  // Entries [keys, end) of s become -infinity.
  static void hide(float* s, int keys, int end) {
    for (int j = keys; j < end; ++j) s[j] = kMinusInfinity;
  }

  // The larger of `best` and products of a panel of which the first `keys` count. A NaN in max's first
  // operand yields the second: NaN products drop out.
  static F larger(const F (&products)[2], int keys, F best) {
    if (keys >= kWidth) return V::max(products[1], V::max(products[0], best));
    float s[kWidth];
    for (int j = 0; j < 2; ++j) V::store(s + j * kLanes, products[j]);
    hide(s, keys < 0 ? 0 : keys, kWidth);
    return V::max(V::load(s + kLanes), V::max(V::load(s), best));
  }

  static void score_block(const ScoreTask& task, int b, ScoreScratch& scratch) {
    const auto page = [&](int i) {
      return static_cast<const T*>(task.k_pages) + int64_t{task.pages[i]} * kBlock * kHeadDim;
    };
    const T* k = page(b);
    // Decode is bound by memory, and there a panel is one tile's work.
    Fetch fetch(b + 1 < task.num_blocks ? page(b + 1) : nullptr, kBlock * kHeadDim * sizeof(T),
                kPanels * (kSteps / Panel::kSlice));
    const int64_t before = task.first_position - int64_t{task.blocks[b]} * kBlock;
    const bool whole = before >= kBlock - 1;  // the first query sees all of it, and so do the others
    const auto visible_to = [&](int column) {
      return whole ? kBlock : visible(before + column / task.heads);
    };
    for (int column = 0; column < task.columns; ++column)
      V::store(scratch.best[column], V::set1(kMinusInfinity));
    for (int first = 0; first < visible_to(task.columns - 1); first += kWidth) {
      Panel::pack_keys(k + first * kHeadDim, scratch.panel);
      Panel::each_tile(0, task.columns, [&](auto& tile, int column) {
        tile.clear();
        tile.add(scratch.q + column * kSteps, kSteps, scratch.panel, kSteps, fetch);
        for (int i = 0; i < tile.kCount; ++i)
          V::store(scratch.best[column + i],
                   larger(tile.sums[i], visible_to(column + i) - first, V::load(scratch.best[column + i])));
      });
    }
    for (int column = 0; column < task.columns; ++column)
      task.scores[column * task.stride + b] = V::largest(V::load(scratch.best[column]));
  }

  static void score(const ScoreTask& task, void* memory) {
    ScoreScratch& scratch = *static_cast<ScoreScratch*>(memory);
    Panel::pack_rows(task.q, task.columns, scratch.q);
    for (int b = 0; b < task.num_blocks; ++b) score_block(task, b, scratch);
  }
};

}  // namespace msa
