// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/sample/sample.h"

#include <climits>

#include "device/cuda/arguments.h"
#include "device/cuda/check.h"
#include "ops/cuda/sample/search.cuh"
#include "sm90/launch.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {
namespace sampling {
namespace {

// What a candidate this far (in units of the temperature) below the best weighs is lost in the rounding of
// any sum: it cannot be drawn.
constexpr double kFar = 50;

// ---- penalties, biases and masks: in the order, and with the roundings, of the engine's Sampler ----

// Penalties may push a logit out of range; a float that is still a number keeps its order. No -0.
__device__ float finite(double logit) {
  constexpr double kMax = 3.4028234663852886e38;
  if (logit == -INFINITY) return -INFINITY;
  return __double2float_rn(fmin(fmax(logit, -kMax), kMax)) + 0.0f;
}

__device__ float penalised(float raw, int count, const PackedRow& p) {
  double logit = raw;
  logit = logit > 0 ? logit / p.repetition_penalty : __dmul_rn(logit, p.repetition_penalty);
  const double fixed = count > 0 ? p.presence_penalty : 0.0;
  return finite(__dsub_rn(logit, __dadd_rn(__dmul_rn(count, p.frequency_penalty), fixed)));
}

__device__ void keep_allowed(Row& row, const int32_t* ids, int count) {
  RowShared& shared = row.shared;
  for (int i = threadIdx.x; i < (row.size + 31) / 32; i += kThreads) shared.mask[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int at = ids[i] - row.begin;
    if (at >= 0 && at < row.size) atomicOr(&shared.mask[at / 32], 1u << (at % 32));
  }
  __syncthreads();
  for (int i = threadIdx.x; i < row.size; i += kThreads)
    if ((shared.mask[i / 32] >> (i % 32) & 1) == 0) shared.slice[i] = -INFINITY;
}

// Only ids whose bit is set stay.
__device__ void keep_masked(Row& row, const int32_t* mask) {
  for (int i = threadIdx.x; i < row.size; i += kThreads) {
    const int id = row.begin + i;
    if ((static_cast<uint32_t>(mask[id / 32]) >> (id % 32) & 1) == 0) row.shared.slice[i] = -INFINITY;
  }
}

// Works on the slice in shared memory; the logits in device memory stay.
__device__ void adjust(Row& row, const PackedRow& p, const int32_t* words) {
  float* const slice = row.shared.slice;
  const int32_t *const seen = words, *const bias = seen + 2 * p.num_seen;
  const int32_t *const allowed = bias + 2 * p.num_bias, *const banned = allowed + p.num_allowed;
  const auto is_here = [&](int at) { return at >= 0 && at < row.size; };
  for (int i = threadIdx.x; i < p.num_seen; i += kThreads) {
    const int at = seen[2 * i] - row.begin;
    if (is_here(at)) slice[at] = penalised(slice[at], seen[2 * i + 1], p);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < p.num_bias; i += kThreads) {
    const int id = bias[2 * i], at = id - row.begin;
    if (!is_here(at) || (i > 0 && bias[2 * i - 2] == id)) continue;
    for (int j = i; j < p.num_bias && bias[2 * j] == id; ++j)  // all of one id, in their order
      slice[at] = finite(double{slice[at]} + __int_as_float(bias[2 * j + 1]));
  }
  __syncthreads();
  if (p.num_allowed > 0) keep_allowed(row, allowed, p.num_allowed);
  __syncthreads();
  if (p.num_mask > 0) keep_masked(row, banned + p.num_banned);
  __syncthreads();
  for (int i = threadIdx.x; i < p.num_banned; i += kThreads) {
    const int at = banned[i] - row.begin;
    if (is_here(at)) slice[at] = -INFINITY;
  }
}

// ---- draws ----

// In the order of ids: the first whose weight, with all before, passes the drawn share of the total. Only the
// thread that holds it returns an id; the others return -1.
__device__ int32_t draw_by_id(Row& row, const Weigher& weigh, double min_p, double draw) {
  // Odd, so that threads read different banks.
  static_assert((kSlice + kThreads - 1) / kThreads < kThreads);
  const int chunk = (row.size + kThreads - 1) / kThreads | 1;
  const int begin = min(static_cast<int>(threadIdx.x) * chunk, row.size), end = min(begin + chunk, row.size);
  const auto weight_at = [&](int i) {
    const double weight = weigh(row.shared.slice[i]);
    return weight < min_p ? 0.0 : weight;
  };
  double mine = 0, cta_total = 0;
#pragma unroll 2
  for (int i = begin; i < end; ++i) mine += weight_at(i);
  const double before_mine = row.scan(mine, &cta_total);
  double left;
  if (row.passing_rank(cta_total, draw, &left) != row.rank) return -1;
  const uint32_t passing = row.smallest(mine > 0 && before_mine + mine > left ? threadIdx.x : ~0u);
  const uint32_t last = kThreads - 1 - row.smallest(mine > 0 ? kThreads - 1 - threadIdx.x : ~0u);
  const uint32_t chosen = passing == ~0u ? last : passing;
  if (threadIdx.x == chosen) row.shared.before_mass = before_mine;
  __syncthreads();
  // The same once more, with a thread for each candidate of the chosen chunk.
  const int at = static_cast<int>(chosen) * chunk + static_cast<int>(threadIdx.x);
  const bool inside = threadIdx.x < chunk && at < row.size;
  const double weight = inside ? weight_at(at) : 0.0;
  const double before = row.shared.before_mass + row.scan(weight, &cta_total);
  const uint32_t first = row.smallest(weight > 0 && before + weight > left ? threadIdx.x : ~0u);
  const uint32_t end_of_all = kThreads - 1 - row.smallest(weight > 0 ? kThreads - 1 - threadIdx.x : ~0u);
  return threadIdx.x == (first == ~0u ? end_of_all : first) ? row.begin + at : -1;
}

// In the order of candidates, for top-k and top-p. All threads return the id.
__device__ int32_t draw_by_order(Row& row, const Weigher& weigh, const Stats& stats, const PackedRow& p) {
  const auto range = static_cast<float>(fmin(double{stats.best} - stats.worst, kFar * p.temperature));
  Search<true> search(row, weigh, stats, range, p.temperature, p.top_k > 0);
  double mass = search.mass();
  Place place{}, last{.key = ~0u, .id = -1};  // of those that are kept
  // One loop and not four calls: the search is long, and would be inlined each time.
  enum Step { kTopK, kTopP, kMinP, kDraw, kDone };
#pragma unroll 1
  for (int step = kTopK; step < kDone; ++step) {
    Target target{};
    if (step == kTopK) {
      if (p.top_k <= 0 || p.top_k >= search.count()) continue;
      target = {.kind = Target::kCount, .count = static_cast<uint32_t>(p.top_k)};
    } else if (step == kTopP) {
      if (p.top_p >= 1) continue;
      target = {.kind = Target::kMassReached, .mass = p.top_p * mass};
    } else if (step == kMinP) {
      if (p.min_p <= 0) continue;
      const auto holds = [&](uint32_t key) { return weigh(logit_of(key)) >= p.min_p; };
      target = {.kind = Target::kKey, .key = last_key(key_of(stats.best), holds)};
    } else {
      target = {.kind = Target::kMassPassed, .mass = p.draw * mass};
    }
    place = search.find(target);
    if (step != kDraw && place.order() < last.order()) last = place, mass = place.mass;
  }
  // Rounding may have taken the draw past the last one.
  return place.order() > last.order() && last.id >= 0 ? last.id : place.id;
}

__device__ void sample_row(Row& row, const SampleArgs& args, int index) {
  const PackedRow& p = static_cast<const PackedRow*>(args.batch)[index];
  const auto finish = [&](SampleStatus status, int32_t id) {
    args.ids[index] = id;
    args.status[index] = status;
  };
  const bool leader = row.rank == 0 && threadIdx.x == 0;
  Stats stats = row.load(args.logits + p.logits_row * args.row_stride);
  if (stats.broken || stats.best_id < 0) {
    if (leader) finish(SampleStatus::kNotFinite, -1);
    return;
  }
  if (p.num_seen + p.num_bias + p.num_allowed + p.num_banned + p.num_mask > 0) {
    adjust(row, p, static_cast<const int32_t*>(args.batch) + p.first_word);
    stats = row.stats();
  }
  if (stats.best_id < 0) {
    if (leader) finish(SampleStatus::kNothingLeft, -1);
    return;
  }
  if (p.temperature == 0) {
    if (leader) finish(SampleStatus::kOk, stats.best_id);
    return;
  }
  const Weigher weigh(row.shared, stats.best, p.temperature);
  const bool ordered = p.top_p < 1 || (p.top_k > 0 && p.top_k < stats.count);
  if (ordered) {
    const int32_t id = draw_by_order(row, weigh, stats, p);
    if (leader) finish(SampleStatus::kOk, id);
  } else {
    const int32_t id = draw_by_id(row, weigh, p.min_p, p.draw);
    if (id >= 0) finish(SampleStatus::kOk, id);
  }
}

__global__ void __cluster_dims__(kCtas, 1, 1) __launch_bounds__(kThreads, 2)
    sample_kernel(const __grid_constant__ SampleArgs args) {
  extern __shared__ __align__(16) char memory[];
  Row row(*reinterpret_cast<RowShared*>(memory), args.vocabulary);
  hopper::wait_for_previous_kernel();
  sample_row(row, args, blockIdx.x / kCtas);
  Row::barrier();  // no CTA may be gone while another reads its memory
}

// ---- greedy draws from logits as they are: one pass, nothing kept ----

constexpr int kGreedyThreads = 256;

__global__ void __cluster_dims__(kCtas, 1, 1) __launch_bounds__(kGreedyThreads)
    greedy_kernel(const __grid_constant__ SampleArgs args) {
  __shared__ Stats of_warp[kGreedyThreads / 32], of_cta;
  const int rank = blockIdx.x % kCtas, index = blockIdx.x / kCtas;
  const int part = ((args.vocabulary + kCtas - 1) / kCtas + 3) / 4 * 4, begin = rank * part;
  const int size = max(min(args.vocabulary - begin, part), 0);
  hopper::wait_for_previous_kernel();
  const int logits_row = static_cast<const PackedRow*>(args.batch)[index].logits_row;
  const float* const from = args.logits + logits_row * args.row_stride + begin;
  Stats stats;
  int done = 0;
  if (reinterpret_cast<uintptr_t>(from) % 16 == 0) {
    done = size / 4 * 4;
    int at = -1;  // of the four that hold the best
#pragma unroll 8
    for (int i = threadIdx.x * 4; i < done; i += kGreedyThreads * 4) {
      const float4 v = __ldcs(reinterpret_cast<const float4*>(from + i));
      if (!(v.x < INFINITY) || !(v.y < INFINITY) || !(v.z < INFINITY) || !(v.w < INFINITY)) stats.broken = 1;
      const float best = fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
      if (best > stats.best) stats.best = best, at = i;
    }
    for (int j = 3; j >= 0 && at >= 0; --j)
      if (from[at + j] == stats.best) stats.best_id = begin + at + j;
  }
  for (int i = done + threadIdx.x; i < size; i += kGreedyThreads) stats.add(from[i], begin + i);
  stats = over_warp(stats);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = stats;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kGreedyThreads / 32; ++w) stats.merge(of_warp[w]);
    of_cta = stats;
  }
  Row::barrier();
  if (rank == 0 && threadIdx.x == 0) {
    for (int r = 1; r < kCtas; ++r) stats.merge(*at_rank(&of_cta, r));
    const bool good = !stats.broken && stats.best_id >= 0;
    args.ids[index] = good ? stats.best_id : -1;
    args.status[index] = good ? SampleStatus::kOk : SampleStatus::kNotFinite;
  }
  Row::barrier();
}

// ---- log-probabilities ----

__device__ void logprobs_row(Row& row, const LogprobsArgs& args, int index) {
  const LogprobsRow wanted = args.wanted[index];
  const float* const logits = args.logits + wanted.logits_row * args.row_stride;
  const Stats stats = row.load(logits);
  __syncthreads();
  const Weigher weigh(row.shared, stats.best, 1.0);
  const int32_t id = wanted.id >= 0 ? wanted.id : args.sampled_ids[wanted.sampled];
  const bool known = id >= 0 && id < args.vocabulary;
  const float own = known ? logits[id] : NAN;
  Tally tally;
  for (int i = threadIdx.x; i < row.size; i += kThreads) {
    const float logit = row.shared.slice[i];
    tally.mass += weigh(logit);
    if (logit > own || (logit == own && row.begin + i < id)) ++tally.above;
  }
  tally = row.over_cluster(tally);
  const double log_total = stats.best + log(tally.mass);
  if (row.rank == 0 && threadIdx.x == 0) {
    args.logprob[index] = static_cast<float>(own - log_total);
    args.rank[index] = known ? static_cast<int32_t>(tally.above) + 1 : 0;
  }
  const int num_top = min(min(wanted.num_top, args.vocabulary), kMaxLogprobs);
  if (num_top <= 0) return;
  Search<false> search(row, weigh, stats, stats.best - stats.worst, 1.0, true);
  search.gather(search.find({.kind = Target::kCount, .count = static_cast<uint32_t>(num_top)}));
  if (row.rank != 0 || threadIdx.x >= num_top) return;
  const uint64_t entry = row.shared.list.sorted[threadIdx.x];
  const int64_t at = int64_t{index} * args.top_stride + threadIdx.x;
  args.top_ids[at] = static_cast<int32_t>(entry);
  args.top_logprobs[at] = static_cast<float>(logit_of(static_cast<uint32_t>(entry >> 32)) - log_total);
}

__global__ void __cluster_dims__(kCtas, 1, 1) __launch_bounds__(kThreads, 2)
    logprobs_kernel(const __grid_constant__ LogprobsArgs args) {
  extern __shared__ __align__(16) char memory[];
  Row row(*reinterpret_cast<RowShared*>(memory), args.vocabulary);
  hopper::wait_for_previous_kernel();
  logprobs_row(row, args, blockIdx.x / kCtas);
  Row::barrier();
}

}  // namespace
}  // namespace sampling

namespace {

// What both demand of the logits and the rows, of which each takes a cluster.
Arguments check_logits(const char* launcher, const float* logits, int64_t row_stride, int vocabulary,
                       int rows) {
  return Arguments(launcher)
      .pointer("logits", logits, alignof(float))
      .range("vocabulary", vocabulary, 1, kMaxVocabulary)
      .range("row_stride", row_stride, vocabulary, INT64_MAX)
      .range("rows", rows, 1, INT_MAX / sampling::kCtas);
}

}  // namespace

void sample(const SampleArgs& args, cudaStream_t stream) {
  using namespace sampling;
  if (args.rows == 0) return;
  check_logits("sample", args.logits, args.row_stride, args.vocabulary, args.rows)
      .pointer("batch", args.batch)
      .pointer("ids", args.ids, alignof(int32_t))
      .pointer("status", args.status, alignof(SampleStatus));
  const dim3 grid(args.rows * kCtas);
  if (args.plain_greedy)
    SPARROW_CUDA(hopper::launch_dependent(greedy_kernel, {grid, kGreedyThreads}, stream, args));
  else
    SPARROW_CUDA(hopper::launch_dependent(sample_kernel, {grid, kThreads, sizeof(RowShared)}, stream, args));
}

void logprobs(const LogprobsArgs& args, cudaStream_t stream) {
  using namespace sampling;
  if (args.rows == 0) return;
  const Arguments arguments =
      check_logits("logprobs", args.logits, args.row_stride, args.vocabulary, args.rows);
  arguments.pointer("wanted", args.wanted, alignof(LogprobsRow))
      .pointer("logprob", args.logprob, alignof(float))
      .pointer("rank", args.rank, alignof(int32_t))
      .range("top_stride", args.top_stride, 0, INT_MAX);
  if (args.top_stride > 0)
    arguments.pointer("top_ids", args.top_ids, alignof(int32_t))
        .pointer("top_logprobs", args.top_logprobs, alignof(float));
  SPARROW_CUDA(hopper::launch_dependent(
      logprobs_kernel, {dim3(args.rows * kCtas), kThreads, sizeof(RowShared)}, stream, args));
}

}  // namespace sparrow::ops::cuda
