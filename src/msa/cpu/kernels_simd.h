// SPDX-License-Identifier: Apache-2.0
// Attention over plain vectors, and the table of all vector kernels. p stays in f32.
#pragma once

#include "msa/cpu/index_simd.h"

namespace msa {

template <typename V, typename T>
struct SimdKernels : SimdIndex<V, T> {
  using Index = SimdIndex<V, T>;
  using F = typename V::F;
  using Index::dots, Index::largest, Index::score, Index::visible, Index::widen;
  using Index::kColumns, Index::kLanes, Index::kMinusInfinity;
  static constexpr float kSlackE = kSlack * 0.69314718f;  // exponents here are to base e

  static void open() {}
  static void close() {}

  static void pack(AttendUnit& unit, const void* q) {
    widen(q, int64_t{unit.heads} * kHeadDim, unit.q);
    for (int i = unit.heads * kHeadDim; i < kUnitHeads * kHeadDim; ++i) unit.q[i] = 0;
  }

  static float exp_of(float x) {
    float lanes[kLanes];
    V::store(lanes, exp<V>(V::set1(x)));
    return lanes[0];
  }

  // Turns one head's products into p, in place, and brings m, l and o up to date. Entries up to a whole
  // vector past `keys` become 0.
  static void weigh(AttendUnit& unit, int head, float* s, int keys, float scale) {
    const F factor = V::set1(scale);
    for (int j = keys; j % kLanes != 0; ++j) s[j] = kMinusInfinity;
    for (int j = 0; j < keys; j += kLanes) V::store(s + j, V::mul(V::load(s + j), factor));
    const float most = largest(s, keys);
    float* o = unit.o + head * kHeadDim;
    if (unit.blocks == 0) {
      unit.m[head] = most;
      unit.l[head] = 0;
      for (int d = 0; d < kHeadDim; d += kLanes) V::store(o + d, V::zero());
    } else if (most > unit.m[head] + kSlackE) {
      const float shrink = exp_of(unit.m[head] - most);
      unit.m[head] = most;
      unit.l[head] *= shrink;
      for (int d = 0; d < kHeadDim; d += kLanes) V::store(o + d, V::mul(V::load(o + d), V::set1(shrink)));
    }
    const F m = V::set1(unit.m[head]);
    F total = V::zero();
    for (int j = 0; j < keys; j += kLanes) {
      const F p = exp<V>(V::sub(V::load(s + j), m));
      V::store(s + j, p);
      total = V::add(total, p);
    }
    unit.l[head] += V::sum(total);
  }

  // o[h] += sum over keys of p[h][j] v[j] for heads [head, head + kHeads).
  template <int kHeads>
  static void add_values(AttendUnit& unit, int head, const float* p, const T* v, int keys) {
    constexpr int kVectors = 4;
    for (int d = 0; d < kHeadDim; d += kVectors * kLanes) {
      F sums[kHeads][kVectors];
      for (int h = 0; h < kHeads; ++h)
        for (int i = 0; i < kVectors; ++i)
          sums[h][i] = V::load(unit.o + (head + h) * kHeadDim + d + i * kLanes);
      for (int j = 0; j < keys; ++j) {
        F weights[kHeads];
        for (int h = 0; h < kHeads; ++h) weights[h] = V::set1(p[h * kBlock + j]);
        for (int i = 0; i < kVectors; ++i) {
          const F value = V::load(v + j * kHeadDim + d + i * kLanes);
          for (int h = 0; h < kHeads; ++h) sums[h][i] = V::fma(weights[h], value, sums[h][i]);
        }
      }
      for (int h = 0; h < kHeads; ++h)
        for (int i = 0; i < kVectors; ++i)
          V::store(unit.o + (head + h) * kHeadDim + d + i * kLanes, sums[h][i]);
    }
  }

  static void attend(const AttendTask& task, void* scratch) {
    float* s = static_cast<float*>(scratch);
    const T* k = static_cast<const T*>(task.k);
    const T* v = static_cast<const T*>(task.v);
    for (int i = 0; i < task.count; ++i) {
      AttendUnit& unit = task.units[task.list[i]];
      const int keys = visible(unit.position - task.first_key);
      for (int head = 0; head < unit.heads; head += kColumns) {
        const int heads = unit.heads - head < kColumns ? unit.heads - head : kColumns;
        dots(unit.q + head * kHeadDim, k, keys, s);
        for (int h = 0; h < heads; ++h) weigh(unit, head + h, s + h * kBlock, keys, task.scale);
        int h = 0;
        for (; h + 2 <= heads; h += 2) add_values<2>(unit, head + h, s + h * kBlock, v, keys);
        if (h < heads) add_values<1>(unit, head + h, s + h * kBlock, v, keys);
      }
      ++unit.blocks;
    }
  }

  static void merge(AttendUnit& into, const AttendUnit& from) {
    for (int head = 0; head < into.heads; ++head) {
      const float m = into.m[head] > from.m[head] ? into.m[head] : from.m[head];
      const float a = exp_of(into.m[head] - m), b = exp_of(from.m[head] - m);
      into.m[head] = m;
      into.l[head] = into.l[head] * a + from.l[head] * b;
      for (int d = head * kHeadDim; d < (head + 1) * kHeadDim; d += kLanes)
        V::store(into.o + d,
                 V::fma(V::load(from.o + d), V::set1(b), V::mul(V::load(into.o + d), V::set1(a))));
    }
    into.blocks += from.blocks;
  }

  static void finish(const AttendUnit& unit, void* out) {
    T* target = static_cast<T*>(out);
    for (int head = 0; head < unit.heads; ++head)
      for (int d = head * kHeadDim; d < (head + 1) * kHeadDim; d += kLanes)
        V::store(target + d, V::div(V::load(unit.o + d), V::set1(unit.l[head])));
  }

  static constexpr Kernels kTable = {open, close, score, pack, attend, merge, finish};
};

}  // namespace msa
