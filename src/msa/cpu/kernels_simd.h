// SPDX-License-Identifier: Apache-2.0
// Attention over plain vectors, and the table of all vector kernels. A block's keys and values are packed
// once for all units of the task; S = Q K^T has a row for each head and lanes along the keys, O += P V lanes
// along the channels. p is rounded only where products take bf16.
#pragma once

#include "msa/cpu/index_simd.h"

namespace msa {

template <typename V, typename T>
struct SimdKernels : SimdIndex<V, T> {
  using Index = SimdIndex<V, T>;
  using Panel = Panels<V, T>;
  using F = typename V::F;
  using Index::kMinusInfinity, Index::visible;
  using Panel::kElements, Panel::kLanes, Panel::kPanels, Panel::kSteps, Panel::kWidth;

  struct Scratch {
    alignas(64) float k[kPanels][kElements];
    alignas(64) float v[kPanels][kElements];
    alignas(64) float s[kUnitHeads][kBlock];
    alignas(64) float p[kUnitHeads][kSteps];
  };
  static_assert(sizeof(Scratch) <= kScratchBytes);

  // A unit's q ends where its o begins: one stretch of memory to fetch.
  static float* q_of(AttendUnit& unit) { return unit.q + kUnitHeads * kHeadDim - unit.heads * kSteps; }
  static void pack(AttendUnit& unit, const void* q) { Panel::pack_rows(q, unit.heads, q_of(unit)); }

  static AttendUnit& unit_of(const AttendTask& task, int i) { return task.units[task.list[i]]; }
  static int keys_of(const AttendTask& task, int i) {
    return visible(unit_of(task, i).position - task.first_key);
  }

  // Brings a head's m up to date with the block's largest score, and l and o with m. m is kept to base 2.
  static float update_maximum(AttendUnit& unit, int head, float most) {
    float* o = unit.o + head * kHeadDim;
    if (unit.blocks == 0) {
      unit.m[head] = most;
      unit.l[head] = 0;
      for (int d = 0; d < kHeadDim; d += kLanes) V::store(o + d, V::zero());
    } else if (most > unit.m[head] + kSlack) {
      const float shrink = exp2_of<V>(unit.m[head] - most);
      unit.m[head] = most;
      unit.l[head] *= shrink;
      for (int d = 0; d < kHeadDim; d += kLanes) V::store(o + d, V::mul(V::load(o + d), V::set1(shrink)));
    }
    return unit.m[head];
  }

  // Turns one head's products into p. What fills up the last vector becomes 0.
  static void weigh(AttendUnit& unit, int head, float* s, float* p, int keys, float scale) {
    const int end = (keys + kLanes - 1) / kLanes * kLanes;
    Index::hide(s, keys, end);
    F most = V::set1(kMinusInfinity);
    for (int j = 0; j < end; j += kLanes) most = V::max(V::load(s + j), most);
    const float factor = scale * 1.44269504f;
    const F minus_m = V::set1(-update_maximum(unit, head, V::largest(most) * factor));
    F total = V::zero();
    for (int j = 0; j < end; j += kLanes) {
      const F x = exp2<V>(V::fma(V::load(s + j), V::set1(factor), minus_m));
      total = V::add(total, x);
      if constexpr (V::kPerElement == 1)
        V::store(p + j, x);
      else
        V::store(reinterpret_cast<uint16_t*>(p) + j, x);
    }
    unit.l[head] += V::sum(total);
  }

  // Attention of the task's unit i. The panels are packed already, or else for this unit alone: then one
  // after the other in one place, which stays in the nearest cache.
  template <bool kPacked>
  static void attend_unit(const AttendTask& task, int i, Scratch& scratch) {
    AttendUnit& unit = unit_of(task, i);
    const int keys = keys_of(task, i);
    Fetch fetch = fetch_after(task, i);
    for (int first = 0; first < keys; first += kWidth) {
      float* panel = scratch.k[kPacked ? first / kWidth : 0];
      if constexpr (!kPacked) Panel::pack_keys(static_cast<const T*>(task.k) + first * kHeadDim, panel);
      Panel::each_tile(0, unit.heads, [&](auto& tile, int head) {
        tile.clear();
        tile.add(q_of(unit) + head * kSteps, kSteps, panel, kSteps, fetch);
        tile.store(scratch.s[head] + first, kBlock);
      });
    }
    for (int head = 0; head < unit.heads; ++head)
      weigh(unit, head, scratch.s[head], scratch.p[head], keys, task.scale);
    for (int first = 0; first < kHeadDim; first += kWidth) {
      float* panel = scratch.v[kPacked ? first / kWidth : 0];
      if constexpr (!kPacked) Panel::pack_values(static_cast<const T*>(task.v) + first, keys, panel);
      Panel::each_tile(0, unit.heads, [&](auto& tile, int head) {
        float* o = unit.o + head * kHeadDim + first;
        tile.load(o, kHeadDim);
        tile.add(scratch.p[head], kSteps, panel, Panel::steps_of(keys), fetch);
        tile.store(o, kHeadDim);
      });
    }
    ++unit.blocks;
  }

  // What is used after this unit: the next unit's q and o, or after the last unit the next block's K and V.
  // Decode spends a block on one unit, less time than memory takes to deliver the next.
  static Fetch fetch_after(const AttendTask& task, int i) {
    const int tiles = (unit_of(task, i).heads + Panel::kTileRows - 1) / Panel::kTileRows;
    const int slices = 2 * kPanels * tiles * (kSteps / Panel::kSlice);
    if (i + 1 == task.count) return Fetch(task.next, 2 * kBlock * kHeadDim * sizeof(T), slices);
    AttendUnit& next = unit_of(task, i + 1);
    return Fetch(q_of(next), next.heads * (kSteps + kHeadDim) * sizeof(float), slices);
  }

  static void attend(const AttendTask& task, void* memory) {
    Scratch& scratch = *static_cast<Scratch*>(memory);
    if (task.count == 1) return attend_unit<false>(task, 0, scratch);
    // Units are in the order of their positions: the last one sees most.
    const int most = keys_of(task, task.count - 1);
    for (int first = 0; first < most; first += kWidth)
      Panel::pack_keys(static_cast<const T*>(task.k) + first * kHeadDim, scratch.k[first / kWidth]);
    for (int first = 0; first < kHeadDim; first += kWidth)
      Panel::pack_values(static_cast<const T*>(task.v) + first, most, scratch.v[first / kWidth]);
    for (int i = 0; i < task.count; ++i) attend_unit<true>(task, i, scratch);
  }

  static void merge(AttendUnit& into, const AttendUnit& from) {
    for (int head = 0; head < into.heads; ++head) {
      const float m = into.m[head] > from.m[head] ? into.m[head] : from.m[head];
      const float a = exp2_of<V>(into.m[head] - m), b = exp2_of<V>(from.m[head] - m);
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

  static constexpr Kernels kTable = {[] {}, [] {}, Index::score, pack, attend, merge, finish};
};

}  // namespace msa
