// SPDX-License-Identifier: Apache-2.0
// A row of logits in the shared memory of a cluster: each CTA holds a slice. What the sampling kernels share:
// loading, sums over the cluster, weights, and finding a place in the order of candidates (by logit, the
// lower id on ties) without sorting them.
//
// A place is found through histograms: of the logits' distance to the best one first, then, inside one bin,
// of the bits of the logits, until the bin is short enough to be sorted. Bins add up counts and weights as
// integers, so that the result does not depend on the order of the atomics.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "ops/cuda/sample/sample.h"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda::sampling {

inline constexpr int kCtas = 8, kThreads = 256, kWarps = kThreads / 32;
inline constexpr int kSlice = kMaxVocabulary / kCtas;
inline constexpr int kBins = 2 * kThreads;
inline constexpr int kCapacity = 512;  // candidates that are sorted
inline constexpr int kTableBits = 8;   // of the table of powers of two
inline constexpr int kTableSize = 1 << kTableBits;
inline constexpr int kExchangeBytes = 64;  // the most that a thread hands to the cluster
static_assert(kSlice % 4 == 0);

// A summed weight is kept as two integers of 17 bits a piece, so that a whole slice fits 32 bits.
inline constexpr int kHalfBits = 17;
static_assert(int64_t{kSlice} * ((1 << kHalfBits) + 1) < (int64_t{1} << 32));

// What a thread, CTA or cluster knows of its candidates.
struct Stats {
  float best = -INFINITY;  // of the lowest id among equals
  int32_t best_id = -1;    // -1: no candidate
  float worst = INFINITY;  // -infinity left out
  uint32_t count = 0;      // -infinity left out
  uint32_t broken = 0;     // NaN or +infinity was seen

  __device__ void add(float logit, int32_t id) {
    if (!(logit < INFINITY)) broken = 1;
    if (logit > best) best = logit, best_id = id;
    if (logit > -INFINITY) worst = fminf(worst, logit), ++count;
  }
  __device__ void merge(const Stats& other) {
    if (other.best > best ||
        (other.best == best && other.best_id >= 0 && (best_id < 0 || other.best_id < best_id)))
      best = other.best, best_id = other.best_id;
    worst = fminf(worst, other.worst), count += other.count, broken |= other.broken;
  }
};

struct Tally {
  double mass = 0;
  uint64_t above = 0;  // ids that are more probable than one
  __device__ void merge(const Tally& other) { mass += other.mass, above += other.above; }
};

struct RowShared {
  float slice[kSlice];
  union {
    struct {
      uint32_t count[kBins], high[kBins], low[kBins];
    } bins;
    struct {
      uint64_t found[kCapacity], sorted[kCapacity];  // key above id
    } list;
    uint32_t mask[(kSlice + 31) / 32];
  };
  double powers[kTableSize];  // 2^(i / kTableSize)
  alignas(16) char of_warp[kWarps][kExchangeBytes];
  alignas(16) char of_cta[2][kExchangeBytes];  // for the cluster
  uint32_t num_found[2], first;
  uint32_t before_count, own_count;
  double before_mass;
};
// Two CTAs share an SM; the hardware takes 1 KB for each.
static_assert(sizeof(RowShared) <= 114 * 1024 - 1024);

// ---- order ----

// Ascending from the most probable logit to the least; -0 must have been made 0.
__device__ __forceinline__ uint32_t key_of(float logit) {
  const uint32_t bits = __float_as_uint(logit);
  return bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
}
__device__ __forceinline__ float logit_of(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key : ~key & 0x7fffffffu);
}
inline constexpr uint32_t kLastKey = 0xff800000u;  // of -infinity

// The last key >= first for which `holds`, which is true for `first` and once false stays so. The whole warp.
template <typename Predicate>
__device__ uint32_t last_key(uint32_t first, const Predicate& holds) {
  uint64_t key = first;
  for (int shift = 27; shift >= 0; shift = shift == 2 ? 0 : shift - 5) {
    const uint64_t tried = key + (uint64_t{threadIdx.x % 32} << shift);
    const bool good = tried <= kLastKey && holds(static_cast<uint32_t>(tried));
    key += static_cast<uint64_t>(__popc(__ballot_sync(~0u, good)) - 1) << shift;
    if (shift == 0) break;
  }
  return static_cast<uint32_t>(key);
}

// ---- weights ----

// exp((logit - best) / temperature) in double, to about 1e-16 near the best logit; 0 below 1e-307.
struct Weigher {
  const double* powers;
  double best, scale;

  __device__ Weigher(const RowShared& shared, float best_logit, double temperature)
      : powers(shared.powers),
        best(best_logit),
        // Capped, so that no distance becomes 0 * infinity.
        scale(fmin(kTableSize * 1.4426950408889634 / temperature, 1e300)) {}

  __device__ double operator()(float logit) const {
    constexpr double kRound = 0x1.8p52, kStep = 0.6931471805599453 / kTableSize;
    const double x = (double{logit} - best) * scale;
    if (!(x > -1022.0 * kTableSize)) return 0;
    const double rounded = x + kRound;
    const int n = __double2loint(rounded);
    const double r = x - (rounded - kRound);
    double p = fma(r, kStep * kStep * kStep * kStep / 24, kStep * kStep * kStep / 6);
    p = fma(r, p, kStep * kStep / 2);
    p = fma(r, p, kStep);
    p = fma(r, p, 1.0) * powers[n & (kTableSize - 1)];
    return __hiloint2double(__double2hiint(p) + ((n >> kTableBits) << 20), __double2loint(p));
  }
};

// ---- the row ----

// The lanes' values put together, for all lanes.
template <typename T>
__device__ T over_warp(T value) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    T other;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i)
      reinterpret_cast<uint32_t*>(&other)[i] =
          __shfl_xor_sync(~0u, reinterpret_cast<uint32_t*>(&value)[i], mask);
    value.merge(other);
  }
  return value;
}

// Where `p`, a place in this CTA's shared memory, lies in another CTA of the cluster.
template <typename T>
__device__ T* at_rank(T* p, int rank) {
  return static_cast<T*>(__cluster_map_shared_rank(const_cast<std::remove_const_t<T>*>(p), rank));
}

// One CTA's view of its row. Every method is called by all threads of all CTAs of the cluster.
class Row {
 public:
  RowShared& shared;
  int rank, begin, size;  // the slice: ids [begin, begin + size)

  __device__ Row(RowShared& memory, int vocabulary) : shared(memory), rank(blockIdx.x % kCtas) {
    const int part = ((vocabulary + kCtas - 1) / kCtas + 3) / 4 * 4;
    begin = rank * part;
    size = max(min(vocabulary - begin, part), 0);
    if (threadIdx.x < kTableSize) shared.powers[threadIdx.x] = exp2(double(threadIdx.x) / kTableSize);
  }

  // Brings the slice in; what it holds, as a whole.
  __device__ Stats load(const float* logits) {
    Stats stats;
    const float* const from = logits + begin;
    if (reinterpret_cast<uintptr_t>(from) % 16 == 0) {
#pragma unroll 8
      for (int i = threadIdx.x * 4; i + 3 < size; i += kThreads * 4) {
        float4 v = __ldcs(reinterpret_cast<const float4*>(from + i));
        v.x += 0.0f, v.y += 0.0f, v.z += 0.0f, v.w += 0.0f;  // -0 becomes 0
        *reinterpret_cast<float4*>(shared.slice + i) = v;
        stats.add(v.x, begin + i), stats.add(v.y, begin + i + 1);
        stats.add(v.z, begin + i + 2), stats.add(v.w, begin + i + 3);
      }
      if (threadIdx.x < size % 4) load_one(from, size / 4 * 4 + threadIdx.x, stats);
    } else {
      for (int i = threadIdx.x; i < size; i += kThreads) load_one(from, i, stats);
    }
    return over_cluster(stats);
  }

  __device__ Stats stats() {
    __syncthreads();
    Stats stats;
    for (int i = threadIdx.x; i < size; i += kThreads) stats.add(shared.slice[i], begin + i);
    return over_cluster(stats);
  }

  // `value` of every thread of the cluster put together, in a fixed order; the same for all threads.
  template <typename T>
  __device__ T over_cluster(T value) {
    static_assert(sizeof(T) <= kExchangeBytes && sizeof(T) % 4 == 0);
    value = over_cta(value);
    publish(value);
    T all;
    for (int r = 0; r < kCtas; ++r) all.merge(published<T>(r));
    turn_ ^= 1;
    return all;
  }

  // The sum of `mine` (one number for a CTA) over the CTAs before this one.
  __device__ uint32_t before_rank(uint32_t mine) {
    publish(mine);
    uint32_t before = 0;
    for (int r = 0; r < rank; ++r) before += published<uint32_t>(r);
    turn_ ^= 1;
    return before;
  }

  // The CTA at which the running sum of `mine` (one number for a CTA) passes `share` of the total, and how
  // much of that share is left there. Where rounding lets none pass it: the last CTA that has anything.
  __device__ int passing_rank(double mine, double share, double* left) {
    publish(mine);
    double target = 0, sum = 0;
    for (int r = 0; r < kCtas; ++r) target += published<double>(r);
    target *= share;
    int chosen = -1;
    for (int r = 0; r < kCtas && !(chosen >= 0 && sum > target); ++r) {
      const double value = published<double>(r);
      if (value > 0) chosen = r, *left = target - sum;
      sum += value;
    }
    turn_ ^= 1;
    return chosen;
  }

  __device__ static void barrier() {
    hopper::cluster_arrive();
    hopper::cluster_wait();
  }

  // Sum over the threads before this one, and over all.
  template <typename T>
  __device__ T scan(T mine, T* total) {
    T inclusive = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const T other = __shfl_up_sync(~0u, inclusive, step);
      if (threadIdx.x % 32 >= step) inclusive += other;
    }
    auto* const of_warp = reinterpret_cast<T*>(shared.of_warp);
    __syncthreads();
    if (threadIdx.x % 32 == 31) of_warp[threadIdx.x / 32] = inclusive;
    __syncthreads();
    T before = 0, sum = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w == threadIdx.x / 32) before = sum;
      sum += of_warp[w];
    }
    *total = sum;
    const T exclusive = __shfl_up_sync(~0u, inclusive, 1);
    return before + (threadIdx.x % 32 == 0 ? T{0} : exclusive);
  }

  // The smallest of the CTA's numbers.
  __device__ uint32_t smallest(uint32_t mine) {
    if (threadIdx.x == 0) shared.first = ~0u;
    __syncthreads();
    mine = __reduce_min_sync(~0u, mine);
    if (threadIdx.x % 32 == 0) atomicMin(&shared.first, mine);
    __syncthreads();
    const uint32_t result = shared.first;
    __syncthreads();
    return result;
  }

 private:
  // What thread 0 of each CTA has, for all; in turns between two places, so that one barrier is enough.
  template <typename T>
  __device__ void publish(const T& value) {
    if (threadIdx.x == 0) *reinterpret_cast<T*>(shared.of_cta[turn_]) = value;
    barrier();
  }
  template <typename T>
  __device__ const T& published(int r) {
    return *at_rank(reinterpret_cast<const T*>(shared.of_cta[turn_]), r);
  }

  __device__ void load_one(const float* from, int i, Stats& stats) {
    const float v = from[i] + 0.0f;
    shared.slice[i] = v;
    stats.add(v, begin + i);
  }

  template <typename T>
  __device__ T over_cta(T value) {
    value = over_warp(value);
    auto* const of_warp = reinterpret_cast<T*>(shared.of_warp);
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    T all;
    if (threadIdx.x == 0)
      for (int w = 0; w < kWarps; ++w) all.merge(of_warp[w]);
    return all;
  }

  int turn_ = 0;
};

}  // namespace sparrow::ops::cuda::sampling
