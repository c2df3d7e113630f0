// SPDX-License-Identifier: Apache-2.0
// Search: finds a place in the order of a row's candidates, by count, by summed weight or by logit.
#pragma once

#include "ops/cuda/sample/row.cuh"

namespace sparrow::ops::cuda::sampling {

// A candidate, and what it makes together with all before it in the order.
struct Place {
  uint32_t key;
  int32_t id;  // -1: no candidate, only a border (Target::kKey)
  uint32_t count;
  double mass;

  __device__ uint64_t order() const { return (uint64_t{key} << 32) | static_cast<uint32_t>(id); }
};

struct Target {
  enum Kind {
    kCount,        // the count-th candidate
    kMassReached,  // the first with which the mass is >= mass
    kMassPassed,   // the first with which the mass is > mass
    kKey,          // the last whose key is <= key; count and mass of the place alone are meant
  };
  Kind kind;
  uint32_t count = 0;
  double mass = 0;
  uint32_t key = 0;

  __device__ bool met(uint32_t counted, double summed) const {
    return kind == kCount ? counted >= count : kind == kMassReached ? summed >= mass : summed > mass;
  }
};

// kWeighted: bins sum weights, and candidates beyond `range` are left out. Without: -infinity counts as well,
// and nothing is left out. Methods are called by all threads of all CTAs of the cluster.
template <bool kWeighted>
class Search {
 public:
  // range: distance from the best logit to the last that matters. counted: kCount may be searched for;
  // without it the counts of places mean nothing, and much work is saved.
  __device__ Search(Row& row, const Weigher& weigh, const Stats& stats, float range, double temperature,
                    bool counted)
      : row_(row), weigh_(weigh), best_(stats.best), counted_(counted) {
    // A little less than all bins, so that the last candidate is inside whatever the rounding.
    bin_scale_ = range > 0 ? fminf(0.999f * kBins / range, 3e38f) : 0.0f;
    octaves_ = bin_scale_ > 0 ? static_cast<float>(1.4426950408889634 / (temperature * bin_scale_)) : 0.0f;
    top_ = histogram({});
  }

  __device__ uint32_t count() const { return top_.total_count; }
  __device__ double mass() const { return top_.total_mass; }

  __device__ Place find(const Target& target) {
    uint32_t base_count = 0;
    double base_mass = 0;
    Keys keys;
    keys.bin = choose(top_, target, bin_of(logit_of(target.key)), base_count, base_mass);
    uint32_t size = counted_ ? row_.shared.own_count : 0;
#pragma unroll 1
    while (true) {
      if (size <= kCapacity) {
        size = collect([&](float logit, uint32_t key, int32_t) {
          return keys.used ? key >= keys.first && key <= keys.last : bin_of(logit) == keys.bin;
        });
        if (size <= kCapacity) return find_in_list(target, size, exponent(keys.bin), base_count, base_mass);
      }
      if (!keys.used) {
        const uint32_t best = key_of(best_);
        const auto is_before = [&](uint32_t key) { return bin_of(logit_of(key)) < keys.bin; };
        const auto is_not_after = [&](uint32_t key) { return bin_of(logit_of(key)) <= keys.bin; };
        keys.used = true;
        keys.first = keys.bin == 0 ? best : last_key(best, is_before) + 1;
        keys.last = last_key(best, is_not_after);
      }
      if (keys.first >= keys.last) break;
      keys.shift = max(0, 32 - __clz(keys.last - keys.first) - kLevelBits);
      const uint32_t key = min(max(target.key, keys.first), keys.last);
      const int bin = choose(histogram(keys), target, static_cast<int>((key - keys.first) >> keys.shift),
                             base_count, base_mass);
      size = row_.shared.own_count;
      keys.first += static_cast<uint32_t>(bin) << keys.shift;
      keys.last = min(keys.last, keys.first + ((1u << keys.shift) - 1));
    }
    return find_equal(target, keys.first, size, exponent(keys.bin), base_count, base_mass);
  }

  // Leaves the candidates up to `place`, at most kCapacity, sorted in shared.list.sorted of every CTA.
  __device__ void gather(const Place& place) {
    collect([&](float, uint32_t key, int32_t id) {
      return key < place.key || (key == place.key && id <= place.id);
    });
    sort(min(place.count, static_cast<uint32_t>(kCapacity)));  // of a row of NaN, any count may come
  }

 private:
  static constexpr int kLevelBits = 9;
  static_assert(1 << kLevelBits <= kBins && kCapacity <= 2 * kThreads);

  // Where a search goes below the first level: bins by key, inside one bin of the first level.
  struct Keys {
    bool used = false;
    int bin = 0, shift = 0;
    uint32_t first = 0, last = 0;
  };

  // Merged bins: this thread's two, and what is before them.
  struct Level {
    uint32_t count[2], before, total_count;
    double mass[2], before_mass, total_mass;
  };

  __device__ int bin_of(float logit) const {
    if (kWeighted && !(logit > -INFINITY)) return kBins;
    const int bin = __float2int_rz((best_ - logit) * bin_scale_);
    return kWeighted ? bin : min(bin, kBins - 1);
  }

  // A bin's weights are kept as multiples of a power of two near the largest of them.
  __device__ int exponent(int bin) const {
    return static_cast<int>(octaves_ * bin);
  }

  __device__ static double power_of_two(int exponent) {
    return __hiloint2double((1023 + exponent) << 20, 0);
  }

  // A weight as an integer, in units of 2^-(exponent + 2 kHalfBits). Every sum is one of such integers, so
  // that bins and lists agree.
  __device__ uint64_t integer_weight(float logit, int exponent) const {
    // Added to 2^52, a number's integer part is the low end of its bits.
    const double scaled = weigh_(logit) * power_of_two(exponent + 2 * kHalfBits) + 0x1p52;
    return __double_as_longlong(scaled) & ((uint64_t{1} << 52) - 1);
  }
  __device__ static double real_weight(uint64_t integer, int exponent) {
    return static_cast<double>(integer) * power_of_two(-(exponent + 2 * kHalfBits));
  }

  __device__ Level histogram(const Keys& keys) {
    const bool counting = !kWeighted || counted_ || keys.used;
    const auto bin_of_logit = [&](float logit) {
      if (!keys.used) return bin_of(logit);
      const uint32_t key = key_of(logit);
      return key >= keys.first && key <= keys.last ? static_cast<int>((key - keys.first) >> keys.shift)
                                                   : kBins;
    };
    const auto exponent_of = [&](int bin) { return exponent(keys.used ? keys.bin : bin); };
    auto& bins = row_.shared.bins;
    Row::barrier();  // nobody reads what was here
    for (int i = threadIdx.x; i < kBins; i += kThreads) bins.count[i] = bins.high[i] = bins.low[i] = 0;
    __syncthreads();
    for (int i = 4 * threadIdx.x; i < row_.size; i += 4 * kThreads) {
      const float4 four = *reinterpret_cast<const float4*>(row_.shared.slice + i);
      const float logits[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int bin = i + j < row_.size ? bin_of_logit(logits[j]) : kBins;
        if (bin >= kBins) continue;
        if (counting) atomicAdd(&bins.count[bin], 1);
        if constexpr (kWeighted) {
          const uint64_t weight = integer_weight(logits[j], exponent_of(bin));
          atomicAdd(&bins.high[bin], static_cast<uint32_t>(weight >> kHalfBits));
          atomicAdd(&bins.low[bin], static_cast<uint32_t>(weight) & ((1u << kHalfBits) - 1));
        }
      }
    }
    Row::barrier();
    Level level;
    uint32_t count[2] = {};
    uint64_t sum[2] = {};
    const int mine = 2 * threadIdx.x;
#pragma unroll 2
    for (int r = 0; r < kCtas; ++r) {
      const auto* const remote = at_rank(&bins, r);
      if (counting) {
        const uint2 c = *reinterpret_cast<const uint2*>(remote->count + mine);
        count[0] += c.x, count[1] += c.y;
      }
      if constexpr (kWeighted) {
        const uint2 high = *reinterpret_cast<const uint2*>(remote->high + mine);
        const uint2 low = *reinterpret_cast<const uint2*>(remote->low + mine);
        sum[0] += (uint64_t{high.x} << kHalfBits) + low.x;
        sum[1] += (uint64_t{high.y} << kHalfBits) + low.y;
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      level.count[j] = count[j];
      level.mass[j] = real_weight(sum[j], exponent_of(mine + j));
    }
    level.before = level.total_count = 0;
    if (counting) level.before = row_.scan(count[0] + count[1], &level.total_count);
    level.before_mass = kWeighted ? row_.scan(level.mass[0] + level.mass[1], &level.total_mass) : 0.0;
    if (!kWeighted) level.total_mass = 0;
    return level;
  }

  // The bin in which the target lies; adds what is before it to the base and leaves its count in own_count.
  __device__ int choose(const Level& level, const Target& target, int key_bin, uint32_t& base_count,
                        double& base_mass) {
    __syncthreads();  // the result of the search before has been read
    const int mine = 2 * threadIdx.x;
    uint32_t found = ~0u, last = ~0u;
    uint32_t count = level.before;
    double mass = level.before_mass;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      count += level.count[j], mass += level.mass[j];
      if (level.count[j] == 0 && level.mass[j] == 0) continue;
      last = kBins - 1 - (mine + j);
      if (found == ~0u && target.met(base_count + count, base_mass + mass)) found = mine + j;
    }
    uint32_t bin;
    if (target.kind == Target::kKey) {
      bin = min(key_bin, kBins - 1);
    } else {
      bin = row_.smallest(found);
      if (bin == ~0u) bin = kBins - 1 - row_.smallest(last);  // rounding: the last bin that holds anything
    }
    if (bin / 2 == threadIdx.x) {
      const bool second = bin % 2 == 1;
      row_.shared.before_count = level.before + (second ? level.count[0] : 0);
      row_.shared.before_mass = level.before_mass + (second ? level.mass[0] : 0.0);
      row_.shared.own_count = second ? level.count[1] : level.count[0];
    }
    __syncthreads();
    base_count += row_.shared.before_count;
    base_mass += row_.shared.before_mass;
    return static_cast<int>(bin);
  }

  // Puts the candidates for which `wanted` into shared.list.found of every CTA, in no order, as far as they
  // fit; returns how many they are.
  template <typename Wanted>
  __device__ uint32_t collect(const Wanted& wanted) {
    RowShared& shared = row_.shared;
    // Two counters in turns: the one of the search before may still be read.
    uint32_t* const num_found = &shared.num_found[found_turn_];
    found_turn_ ^= 1;
    if (threadIdx.x == 0) *num_found = 0;
    Row::barrier();  // also: nobody reads what was in the list's place
    const int lane = threadIdx.x % 32;
    const uint32_t lanes_before = (1u << lane) - 1;
    for (int i = 4 * threadIdx.x; i - 4 * lane < row_.size; i += 4 * kThreads) {
      const float4 four = i < row_.size ? *reinterpret_cast<const float4*>(shared.slice + i) : float4{};
      const float logits[4] = {four.x, four.y, four.z, four.w};
      bool hit[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        hit[j] = i + j < row_.size && wanted(logits[j], key_of(logits[j]), row_.begin + i + j);
      if (!__any_sync(~0u, hit[0] || hit[1] || hit[2] || hit[3])) continue;
      uint32_t hits[4], count = 0, place = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) hits[j] = __ballot_sync(~0u, hit[j]), count += __popc(hits[j]);
      if (lane == 0) place = atomicAdd(at_rank(num_found, 0), count);
      place = __shfl_sync(~0u, place, 0);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t at = place + __popc(hits[j] & lanes_before);
        place += __popc(hits[j]);
        if (!hit[j] || at >= kCapacity) continue;
        const uint64_t entry =
            (uint64_t{key_of(logits[j])} << 32) | static_cast<uint32_t>(row_.begin + i + j);
        for (int r = 0; r < kCtas; ++r) *at_rank(&shared.list.found[at], r) = entry;
      }
    }
    Row::barrier();
    return *at_rank(num_found, 0);
  }

  __device__ void sort(uint32_t size) {
    auto& list = row_.shared.list;
    for (uint32_t i = threadIdx.x; i < size; i += kThreads) {
      const uint64_t mine = list.found[i];
      uint32_t smaller = 0;
#pragma unroll 8
      for (uint32_t j = 0; j < size; ++j) smaller += list.found[j] < mine;
      list.sorted[smaller] = mine;
    }
    __syncthreads();
  }

  __device__ Place find_in_list(const Target& target, uint32_t size, int exponent, uint32_t base_count,
                                double base_mass) {
    RowShared& shared = row_.shared;
    sort(size);
    const uint32_t mine = 2 * threadIdx.x;
    uint32_t keys[3] = {};
    double weight[2] = {};
#pragma unroll
    for (uint32_t j = 0; j < 3; ++j)
      if (mine + j < size) keys[j] = static_cast<uint32_t>(shared.list.sorted[mine + j] >> 32);
    if constexpr (kWeighted)
      for (uint32_t j = 0; j < 2; ++j)
        if (mine + j < size) weight[j] = real_weight(integer_weight(logit_of(keys[j]), exponent), exponent);
    double total = 0;
    double mass = base_mass + (kWeighted ? row_.scan(weight[0] + weight[1], &total) : 0.0);
    uint32_t found = ~0u;
    double found_mass = 0, masses[2];
#pragma unroll
    for (uint32_t j = 0; j < 2; ++j) {
      masses[j] = mass += weight[j];
      if (mine + j >= size || found != ~0u) continue;
      const bool ends = mine + j + 1 == size || keys[j + 1] > target.key;
      if (target.kind == Target::kKey ? keys[j] <= target.key && ends
                                      : target.met(base_count + mine + j + 1, mass))
        found = mine + j, found_mass = mass;
    }
    uint32_t first = row_.smallest(found);
    if (first == ~0u) {
      if (target.kind == Target::kKey) return {target.key, -1, base_count, base_mass};
      first = size - 1;  // rounding left a crumb past the last one
      found_mass = first % 2 ? masses[1] : masses[0];
    }
    if (first / 2 == threadIdx.x) shared.before_mass = found_mass;
    __syncthreads();
    const uint64_t entry = shared.list.sorted[first];
    return {static_cast<uint32_t>(entry >> 32), static_cast<int32_t>(entry), base_count + first + 1,
            shared.before_mass};
  }

  // Among `size` candidates of one key, more than fit a list: they differ by id alone.
  __device__ Place find_equal(const Target& target, uint32_t key, uint32_t size, int exponent,
                              uint32_t base_count, double base_mass) {
    const double weight = kWeighted ? real_weight(integer_weight(logit_of(key), exponent), exponent) : 0.0;
    uint32_t nth = size;
    if (target.kind == Target::kKey) {
      if (key > target.key) return {target.key, -1, base_count, base_mass};
    } else if (target.kind == Target::kCount) {
      nth = min(target.count - base_count, size);
    } else if (kWeighted && weight > 0) {
      nth = static_cast<uint32_t>(
          fmin(fmax(ceil((target.mass - base_mass) * (1 / fmax(weight, 1e-300))), 1.0), double(size)));
      while (nth > 1 && target.met(0, base_mass + (nth - 1) * weight)) --nth;
      while (nth < size && !target.met(0, base_mass + nth * weight)) ++nth;
    }
    return {key, nth_of(key, nth), base_count + nth, base_mass + nth * weight};
  }

  // The id of the nth candidate (from 1) of that key.
  __device__ int32_t nth_of(uint32_t key, uint32_t nth) {
    const int chunk = (row_.size + kThreads - 1) / kThreads;
    const int begin = min(static_cast<int>(threadIdx.x) * chunk, row_.size),
              end = min(begin + chunk, row_.size);
    uint32_t equal = 0, total = 0;
    for (int i = begin; i < end; ++i) equal += key_of(row_.shared.slice[i]) == key;
    uint32_t before = row_.scan(equal, &total);
    before += row_.before_rank(total);
    if (before < nth && nth <= before + equal)
      for (int i = begin; i < end; ++i)
        if (key_of(row_.shared.slice[i]) == key && ++before == nth)
          for (int r = 0; r < kCtas; ++r) *at_rank(&row_.shared.first, r) = row_.begin + i;
    Row::barrier();
    return static_cast<int32_t>(row_.shared.first);
  }

  Row& row_;
  const Weigher& weigh_;
  float best_, bin_scale_, octaves_;
  bool counted_;
  int found_turn_ = 0;
  Level top_;
};

}  // namespace sparrow::ops::cuda::sampling
