// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/rows.h"

#include <algorithm>
#include <climits>

#include "base/math.h"
#include "device/cuda/arguments.h"
#include "device/cuda/check.h"
#include "ops/cuda/embedding.cuh"
#include "ops/cuda/mx/e4m3.cuh"
#include "ops/cuda/rows_device.cuh"
#include "sm90/launch.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {
namespace {

constexpr int kMaxThreads = kMaxHidden / kVector;
constexpr int kSms = 132;  // of an H200

// ---- embed ----

__global__ void __launch_bounds__(kMaxThreads) embed_kernel(const __grid_constant__ EmbedArgs p) {
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();
  const int vectors = p.hidden / kVector;
  for (int row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const __nv_bfloat16* const from = embedding_of(p, row);
    for (int i = threadIdx.x; i < vectors; i += blockDim.x) {
      uint4 bits = {};
      if (from != nullptr) bits = *reinterpret_cast<const uint4*>(from + i * kVector);
      *reinterpret_cast<uint4*>(p.out + int64_t{row} * p.hidden + i * kVector) = bits;
    }
  }
}

// ---- norms ----

enum class Source { kPlain, kAdd, kGather };

struct NormParams {
  const __nv_bfloat16 *x, *delta, *weight;
  const int32_t* gather;
  __nv_bfloat16 *residual, *out;
  int rows, hidden;
  float eps;
};

// A CTA for each row, which stays in registers between its one read and its one write: kVectors * 8 columns
// for each thread. kFew: the kernel after starts at once, weights are loaded while the one before runs, and
// the CTA goes through its work once on the weights alone, so that its code is near when it counts.
template <Source kSource, int kVectors, bool kFew>
__global__ void __launch_bounds__(kMaxThreads / kVectors) norm_kernel(const __grid_constant__ NormParams p) {
  __shared__ double partial[32];
  if constexpr (kFew) hopper::let_next_kernel_start();
  const int vectors = p.hidden / kVector;
  Vector weight[kVectors], x[kVectors], delta[kVectors];
  const auto load_weights = [&] {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int i = v * blockDim.x + threadIdx.x;
      if (i < vectors) weight[v] = load_vector(p.weight + i * kVector);
    }
  };
  if constexpr (kFew) load_weights();
#pragma unroll 1
  for (int pass = kFew ? 0 : 1; pass < 2; ++pass) {
    const bool rehearsal = kFew && pass == 0;
    if (!rehearsal) hopper::wait_for_previous_kernel();
    if constexpr (!kFew) hopper::let_next_kernel_start();
    int row = blockIdx.x, from = row;
    if (kSource == Source::kGather && !rehearsal) from = p.gather[row];
    if (rehearsal) row = from = 0;
    const __nv_bfloat16 *const x_from = rehearsal ? p.weight : p.x, *const delta_from =
                                                                        rehearsal ? p.weight : p.delta;
    // All loads first: the compiler may not move one over a store to the residual.
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int i = v * blockDim.x + threadIdx.x;
      x[v] = delta[v] = {};
      if (i >= vectors || from < 0) continue;
      x[v] = load_vector(x_from + int64_t{from} * p.hidden + i * kVector);
      if constexpr (kSource != Source::kPlain)
        delta[v] = load_vector(delta_from + int64_t{from} * p.hidden + i * kVector);
    }
    double sum = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int i = v * blockDim.x + threadIdx.x;
      if constexpr (kSource != Source::kPlain) add_vector(x[v], delta[v]);
      if constexpr (kSource == Source::kAdd)
        if (i < vectors && !rehearsal) store_vector(p.residual + int64_t{row} * p.hidden + i * kVector, x[v]);
      add_squares(x[v], sum);
    }
    if constexpr (!kFew) load_weights();
    const float scale = norm_scale(cta_sum(sum, partial), p.hidden, p.eps);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int i = v * blockDim.x + threadIdx.x;
      if (i >= vectors) continue;
      scale_vector(x[v], scale, weight[v]);
      if (!rehearsal) store_vector(p.out + int64_t{row} * p.hidden + i * kVector, x[v]);
    }
    if constexpr (kFew) __syncthreads();  // partial
  }
}

constexpr int kWide = 2;  // vectors of a thread where rows are many

__device__ __forceinline__ float largest_product(const Vector& x, const Vector& weight) {
  float largest = 0;
#pragma unroll
  for (int e = 0; e < kVector / 2; ++e) {
    const float2 f = __bfloat1622float2(x.pair[e]), w = __bfloat1622float2(weight.pair[e]);
    largest = fmaxf(largest, fmaxf(fabsf(f.x * (1.0f + w.x)), fabsf(f.y * (1.0f + w.y))));
  }
  return largest;
}

// The same for many rows that leave as e4m3, and as they are where p.out says so. kThreads at most, and so
// many CTAs on an SM: left alone the compiler takes registers that leave room for two of 384 threads.
template <Source kSource, int kThreads, int kCtas>
__global__ void __launch_bounds__(kThreads, kCtas)
    rounded_norm_kernel(const __grid_constant__ NormParams p, const E4m3Rows rounded) {
  __shared__ SumAndLargest partial[32];
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();
  const int64_t first = int64_t{blockIdx.x} * p.hidden;
  const auto column_of = [&](int v) { return static_cast<int>(v * blockDim.x + threadIdx.x) * kVector; };
  Vector x[kWide], delta[kWide], weight[kWide];
#pragma unroll
  for (int v = 0; v < kWide; ++v) {
    const bool there = column_of(v) < p.hidden;
    x[v] = load_vector_if(there, p.x + first + column_of(v));
    if constexpr (kSource == Source::kAdd) delta[v] = load_vector_if(there, p.delta + first + column_of(v));
    weight[v] = load_vector_if(there, p.weight + column_of(v));
  }
  // The largest number is found before it is scaled and rounded, so that one exchange does for both.
  SumAndLargest row{};
#pragma unroll
  for (int v = 0; v < kWide; ++v) {
    const bool there = column_of(v) < p.hidden;
    if constexpr (kSource == Source::kAdd) {
      add_vector(x[v], delta[v]);
      store_vector_if(there, p.residual + first + column_of(v), x[v]);
    }
    add_squares(x[v], row.sum);
    row.largest = fmaxf(row.largest, largest_product(x[v], weight[v]));
  }
  row = cta_sum_and_largest(row, partial);
  const float scale = norm_scale(row.sum, p.hidden, p.eps), largest = row.largest * scale;
#pragma unroll
  for (int v = 0; v < kWide; ++v) {
    scale_vector(x[v], scale, weight[v]);
    store_vector_if(p.out != nullptr && column_of(v) < p.hidden, p.out + first + column_of(v), x[v]);
    const uint2 codes = e4m3_eight(*reinterpret_cast<const uint4*>(&x[v]), e4m3_factor(largest));
    uint8_t* const to = rounded.codes + first + column_of(v) / 32 * 32 + e4m3_eight_at();
    if (column_of(v) < p.hidden) *reinterpret_cast<uint2*>(to) = codes;
  }
  if (threadIdx.x == 0) rounded.scales[blockIdx.x] = largest / kLargestE4m3;
}

// What every operation on rows of activations demands.
Arguments check_rows(const char* launcher, int rows, int hidden) {
  return Arguments(launcher)
      .range("rows", rows, 1, INT_MAX)
      .range("hidden", hidden, kColumnTile, kMaxHidden)
      .multiple("hidden", hidden, kColumnTile);
}

template <Source kSource>
void launch_norm(const char* launcher, const NormParams& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  const Arguments arguments = check_rows(launcher, p.rows, p.hidden);
  arguments.pointer(kSource == Source::kPlain ? "x" : "residual", p.x)
      .pointer("weight", p.weight)
      .pointer("out", p.out);
  if (kSource != Source::kPlain) arguments.pointer("delta", p.delta);
  if (kSource == Source::kGather) arguments.pointer("logit_rows", p.gather, alignof(int32_t));
  const int vectors = p.hidden / kVector;
  // Up to a row for each SM: one vector for each thread, for the shortest way through a row. More: smaller
  // CTAs, so that some load while others wait for their sum.
  const bool few = p.rows <= kSms || vectors < 32 * kWide;
  const int threads = ceil_div(ceil_div(vectors, few ? 1 : kWide), 32) * 32;
  const auto kernel = few ? norm_kernel<kSource, 1, true> : norm_kernel<kSource, kWide, false>;
  SPARROW_CUDA(hopper::launch_dependent(kernel, {dim3(p.rows), threads}, stream, p));
}

template <Source kSource>
void launch_rounded_norm(const char* launcher, const NormParams& p, const E4m3Rows& rounded,
                         cudaStream_t stream) {
  if (p.rows == 0) return;
  const Arguments arguments = check_rows(launcher, p.rows, p.hidden);
  arguments.pointer(kSource == Source::kPlain ? "x" : "residual", p.x)
      .pointer("weight", p.weight)
      .pointer("codes", rounded.codes)
      .pointer("scales", rounded.scales, alignof(float));
  if (kSource != Source::kPlain) arguments.pointer("delta", p.delta);
  const int threads = ceil_div(p.hidden / kVector, 32 * kWide) * 32;
  const auto kernel = threads <= 384 ? rounded_norm_kernel<kSource, 384, 3>
                                     : rounded_norm_kernel<kSource, kMaxThreads / kWide, 2>;
  SPARROW_CUDA(hopper::launch_dependent(kernel, {dim3(p.rows), threads}, stream, p, rounded));
}

// ---- ids ----

// Lets nobody start early: what it writes is metadata, which a successor's successor may read before its own
// wait.
__global__ void __launch_bounds__(256) feed_ids_kernel(const __grid_constant__ FeedIdsArgs p) {
  hopper::wait_for_previous_kernel();
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= p.rows) return;
  const int source = p.source[row];
  if (source >= 0) p.ids[row] = p.sampled[source];
}

}  // namespace

void embed(const EmbedArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  check_rows("embed", args.rows, args.hidden)
      .pointer("ids", args.ids, alignof(int32_t))
      .pointer("table", args.table)
      .pointer("out", args.out)
      .range("first_vocab_row", args.first_vocab_row, 0, INT_MAX)
      .range("vocab_rows", args.vocab_rows, 1, INT_MAX);
  if (args.feature_rows != nullptr) Arguments("embed").pointer("features", args.features);
  const int threads = std::min(ceil_div(args.hidden / kVector, 32) * 32, kMaxThreads);
  SPARROW_CUDA(
      hopper::launch_dependent(embed_kernel, {dim3(std::min(args.rows, 32 * kSms)), threads}, stream, args));
}

void rms_norm(const RmsNormArgs& args, cudaStream_t stream) {
  const NormParams p{.x = args.x,
                     .weight = args.weight,
                     .out = args.out,
                     .rows = args.rows,
                     .hidden = args.hidden,
                     .eps = args.eps};
  if (args.rounded.codes != nullptr)
    launch_rounded_norm<Source::kPlain>("rms_norm", p, args.rounded, stream);
  else
    launch_norm<Source::kPlain>("rms_norm", p, stream);
}

void add_rms_norm(const AddRmsNormArgs& args, cudaStream_t stream) {
  const NormParams p{.x = args.residual,
                     .delta = args.delta,
                     .weight = args.weight,
                     .residual = args.residual,
                     .out = args.out,
                     .rows = args.rows,
                     .hidden = args.hidden,
                     .eps = args.eps};
  if (args.rounded.codes != nullptr)
    launch_rounded_norm<Source::kAdd>("add_rms_norm", p, args.rounded, stream);
  else
    launch_norm<Source::kAdd>("add_rms_norm", p, stream);
}

void final_norm(const FinalNormArgs& args, cudaStream_t stream) {
  launch_norm<Source::kGather>("final_norm",
                               {.x = args.residual,
                                .delta = args.delta,
                                .weight = args.weight,
                                .gather = args.logit_rows,
                                .out = args.out,
                                .rows = args.rows,
                                .hidden = args.hidden,
                                .eps = args.eps},
                               stream);
}

void feed_ids(const FeedIdsArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  Arguments("feed_ids")
      .pointer("sampled", args.sampled, alignof(int32_t))
      .pointer("source", args.source, alignof(int32_t))
      .pointer("ids", args.ids, alignof(int32_t))
      .range("rows", args.rows, 1, INT_MAX);
  SPARROW_CUDA(
      hopper::launch_dependent(feed_ids_kernel, {dim3(ceil_div(args.rows, 256)), 256}, stream, args));
}

}  // namespace sparrow::ops::cuda
