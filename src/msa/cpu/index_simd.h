// SPDX-License-Identifier: Apache-2.0
// Products of queries and keys, and index scores, over plain vectors: T is float or uint16_t (bf16), V a
// vector type of simd.h. Lanes run along the head dimension; a dot product sums its lanes in one fixed order.
#pragma once

#include "msa/common/simd.h"
#include "msa/cpu/kernels.h"

namespace msa {

template <typename V, typename T>
struct SimdIndex {
  using F = typename V::F;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kColumns = 4;  // dot products share each load of a key among so many query columns
  static constexpr float kMinusInfinity = -__builtin_inff();

  static void widen(const void* from, int64_t count, float* to) {
    const T* source = static_cast<const T*>(from);
    for (int64_t i = 0; i < count; i += kLanes) V::store(to + i, V::load(source + i));
  }

  // s[c][j] = q[c] . k[j] for kColumns columns and keys [0, keys), rounded up to even.
  static void dots(const float* q, const T* k, int keys, float* s) {
    for (int j = 0; j < keys; j += 2) {
      F sums[2][kColumns];
      for (int c = 0; c < kColumns; ++c) sums[0][c] = sums[1][c] = V::zero();
      for (int d = 0; d < kHeadDim; d += kLanes) {
        const F k0 = V::load(k + j * kHeadDim + d), k1 = V::load(k + (j + 1) * kHeadDim + d);
        for (int c = 0; c < kColumns; ++c) {
          const F qc = V::load(q + c * kHeadDim + d);
          sums[0][c] = V::fma(qc, k0, sums[0][c]);
          sums[1][c] = V::fma(qc, k1, sums[1][c]);
        }
      }
      for (int c = 0; c < kColumns; ++c) {
        s[c * kBlock + j] = V::sum(sums[0][c]);
        s[c * kBlock + j + 1] = V::sum(sums[1][c]);
      }
    }
  }

  static float largest(const float* s, int count) {
    float best = kMinusInfinity;
    int j = 0;
    if (count >= kLanes) {
      F most = V::set1(kMinusInfinity);
      // A NaN in max's first operand yields the second: NaN scores drop out.
      for (; j + kLanes <= count; j += kLanes) most = V::max(V::load(s + j), most);
      float lanes[kLanes];
      V::store(lanes, most);
      for (const float lane : lanes)
        if (lane > best) best = lane;
    }
    for (; j < count; ++j)
      if (s[j] > best) best = s[j];
    return best;
  }

  static void score(const ScoreTask& task, void* scratch) {
    float* q = static_cast<float*>(scratch);
    float* s = q + (kScoreColumns + kColumns) * kHeadDim;
    widen(task.q, int64_t{task.columns} * kHeadDim, q);
    for (int i = task.columns * kHeadDim; i < (task.columns + kColumns) * kHeadDim; ++i) q[i] = 0;
    for (int b = 0; b < task.num_blocks; ++b) {
      const T* k = static_cast<const T*>(task.k_pages) + int64_t{task.blocks[b]} * kBlock * kHeadDim;
      const int64_t before = task.first_position - int64_t{task.first_block + b} * kBlock;
      for (int column = 0; column < task.columns; column += kColumns) {
        const int last = column + kColumns < task.columns ? column + kColumns - 1 : task.columns - 1;
        const int keys = visible(before + last / task.heads);
        dots(q + column * kHeadDim, k, keys, s);
        for (int c = column; c <= last; ++c)
          task.scores[c * task.stride + task.first_block + b] =
              largest(s + (c - column) * kBlock, visible(before + c / task.heads));
      }
    }
  }

  // Keys of a block that a query sees which stands `after` positions behind the block's first key.
  static int visible(int64_t after) {
    if (after < 0) return 0;
    return after >= kBlock ? kBlock : static_cast<int>(after) + 1;
  }
};

}  // namespace msa
