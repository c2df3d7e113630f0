// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/router.h"

#include <algorithm>

#include "device/cuda/check.h"
#include "msa/sm90/launch.cuh"
#include "msa/sm90/tensor_map.h"
#include "ops/cuda/router_many.cuh"

namespace sparrow::ops::cuda {
namespace {

using namespace msa::sm90;

constexpr int ceil_div(int a, int b) {
  return (a + b - 1) / b;
}

// The three terms of a pair of numbers: each takes the next 8 bits.
__device__ __forceinline__ void split_pair(float x, float y, uint32_t (&terms)[3]) {
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const __nv_bfloat162 term = __floats2bfloat162_rn(x, y);
    terms[i] = *reinterpret_cast<const uint32_t*>(&term);
    const float2 f = __bfloat1622float2(term);
    x -= f.x, y -= f.y;
  }
}

__global__ void __launch_bounds__(256)
    split_router_kernel(const float* router, __nv_bfloat16* parts, int64_t count) {
  for (int64_t i = (blockIdx.x * int64_t{256} + threadIdx.x) * 2; i < count; i += int64_t{gridDim.x} * 512) {
    const float2 f = *reinterpret_cast<const float2*>(router + i);
    uint32_t terms[3];
    split_pair(f.x, f.y, terms);
    for (int t = 0; t < 3; ++t) *reinterpret_cast<uint32_t*>(parts + t * count + i) = terms[t];
  }
}

// ---- selection: one warp for a row ----

struct Selection {
  const float* bias;
  int32_t* ids;
  float* weights;
  int rows, num_experts, top_k;
};

// Ascending with the number; any number is above 0.
__device__ __forceinline__ uint32_t ordered_bits(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);  // -0 equals 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

template <int kPerLane>
__device__ void load_bias(const Selection& p, float (&bias)[kPerLane]) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = 32 * i + static_cast<int>(threadIdx.x % 32);
    bias[i] = e < p.num_experts ? __ldg(p.bias + e) : 0.0f;
  }
}

// logit[i] and bias[i] are those of expert 32 i + lane.
template <int kPerLane>
__device__ void select_experts(const Selection& p, int row, const float (&logit)[kPerLane],
                               const float (&bias)[kPerLane]) {
  constexpr uint32_t kTaken = 0;
  const int lane = threadIdx.x % 32;
  float sigmoid[kPerLane];
  uint32_t choice[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = 32 * i + lane;
    sigmoid[i] = 1.0f / (1.0f + expf(-logit[i]));
    const float biased = sigmoid[i] + bias[i];
    choice[i] = e < p.num_experts ? ordered_bits(isnan(biased) ? -INFINITY : biased) : kTaken;
  }
  int picked = kMaxExperts;  // of lane k: the expert of round k
  float picked_sigmoid = 0;
  for (int k = 0; k < p.top_k; ++k) {
    uint32_t best = kTaken;
    int slot = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (choice[i] > best) best = choice[i], slot = i;
    const uint32_t top = __reduce_max_sync(~0u, best);
    const int mine = best == top ? 32 * slot + lane : kMaxExperts;
    const int winner = __reduce_min_sync(~0u, mine);
    float value = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (32 * i + lane == winner) choice[i] = kTaken, value = sigmoid[i];
    value = __shfl_sync(~0u, value, winner % 32);
    if (lane == k) picked = winner, picked_sigmoid = value;
  }
  // By ascending id; the sum is taken in that order too.
  int place = 0;
  for (int k = 0; k < p.top_k; ++k) place += __shfl_sync(~0u, picked, k) < picked;
  float sum = 0;
  for (int k = 0; k < p.top_k; ++k) {
    const uint32_t owner = __ballot_sync(~0u, lane < p.top_k && place == k);
    sum += __shfl_sync(~0u, picked_sigmoid, __ffs(owner) - 1);
  }
  if (lane >= p.top_k) return;
  p.ids[int64_t{row} * p.top_k + place] = picked;
  p.weights[int64_t{row} * p.top_k + place] = picked_sigmoid / sum;
}

constexpr int kSelectWarps = 8;

template <int kPerLane>
__global__ void __launch_bounds__(32 * kSelectWarps)
    select_kernel(const __grid_constant__ Selection p, const float* logits) {
  float logit[kPerLane] = {}, bias[kPerLane];
  load_bias(p, bias);
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int row = blockIdx.x * kSelectWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= p.rows) return;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (32 * i + lane < p.num_experts) logit[i] = logits[int64_t{row} * p.num_experts + 32 * i + lane];
  select_experts(p, row, logit, bias);
}

// ---- few rows ----

// A CTA makes 64 rows by 64 experts over a few chunks of 32 columns: a warp for 8 experts. The columns of a
// chunk are dealt to a product's k in the order that lets every thread load 16 bytes at a time. The 8 CTAs of
// a cluster add up their columns, each for 8 of the rows. The clusters' parts meet in global memory, where
// the last cluster of a group of rows waits for them, adds them up and selects.
struct FewTraits {
  static constexpr int kCluster = 8, kWarps = 8, kThreads = 32 * kWarps;
  static constexpr int kRows = 64, kExperts = 8 * kWarps, kChunk = 32;
  static constexpr int kChunks = 3;  // of a CTA
  static constexpr int kRowsOfCta = kRows / kCluster;
  static constexpr int kPad = 8;  // spreads a fragment's rows over the banks

  static int num_parts(int hidden) { return ceil_div(hidden, kChunk * kChunks * kCluster); }
};

struct FewParams {
  const __nv_bfloat16* x;
  const float* router;
  float* logits;  // [num_parts, rows, num_experts]: all 0 between calls
  Selection selection;
  int hidden;
};

// A part's logit is its own flag: 0 says that it is not there yet. A logit of 0 is written as -0.
__device__ __forceinline__ void post(float* to, float logit) {
  const float posted = logit == 0 ? -0.0f : logit;
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(posted) : "memory");
}
__device__ __forceinline__ float peek(const float* from) {
  float logit;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(logit) : "l"(from) : "memory");
  return logit;
}

// Waits for all parts of a row, takes them away and adds them up in their order.
template <int kPerLane>
__device__ void await_logits(const FewParams& p, int num_parts, int row, float (&logit)[kPerLane]) {
  constexpr int kBatch = 8;  // parts on their way at the same time
  const int lane = threadIdx.x % 32, num_experts = p.selection.num_experts;
  const int64_t stride = int64_t{p.selection.rows} * num_experts;
  for (int base = 0; base < num_parts; base += kBatch) {
    float parts[kBatch][kPerLane];
    bool ready;
    do {
      ready = true;
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) {
          parts[b][i] = 0;
          if (base + b >= num_parts || 32 * i + lane >= num_experts) continue;
          parts[b][i] = peek(p.logits + (base + b) * stride + int64_t{row} * num_experts + 32 * i + lane);
        }
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
#pragma unroll
        for (int i = 0; i < kPerLane; ++i)
          if (base + b < num_parts && 32 * i + lane < num_experts)
            ready = ready && __float_as_uint(parts[b][i]) != 0;
    } while (!__all_sync(~0u, ready));
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        logit[i] += parts[b][i];
        if (base + b < num_parts && 32 * i + lane < num_experts)
          p.logits[(base + b) * stride + int64_t{row} * num_experts + 32 * i + lane] = 0;
      }
  }
}

__device__ __forceinline__ float2 load_cluster(uint32_t address) {
  float2 v;
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}

// acc[tile] = x (16 rows a tile) times the terms of 8 experts, over the CTA's chunks of columns.
template <int kTiles>
__device__ void few_products(const FewParams& p, int first_row, int first_expert, int first_chunk,
                             float (&acc)[kTiles][4]) {
  using T = FewTraits;
  const int lane = threadIdx.x % 32, expert = first_expert + lane / 4;
  const int chunks = p.hidden / T::kChunk;
  const float* const router = p.router + int64_t{expert} * p.hidden + lane % 4 * 8;
  float4 weights[T::kChunks][2];
#pragma unroll
  for (int c = 0; c < T::kChunks; ++c) {
    weights[c][0] = weights[c][1] = {};
    if (first_chunk + c >= chunks || expert >= p.selection.num_experts) continue;
    const auto* const from = reinterpret_cast<const float4*>(router + (first_chunk + c) * T::kChunk);
    weights[c][0] = __ldg(from), weights[c][1] = __ldg(from + 1);
  }
  uint32_t terms[T::kChunks][4][3];
#pragma unroll
  for (int c = 0; c < T::kChunks; ++c) {
    split_pair(weights[c][0].x, weights[c][0].y, terms[c][0]);
    split_pair(weights[c][0].z, weights[c][0].w, terms[c][1]);
    split_pair(weights[c][1].x, weights[c][1].y, terms[c][2]);
    split_pair(weights[c][1].z, weights[c][1].w, terms[c][3]);
  }
  wait_for_previous_kernel();  // the router's numbers are weights, x is not
  uint4 x[T::kChunks][kTiles][2];
#pragma unroll
  for (int c = 0; c < T::kChunks; ++c)
#pragma unroll
    for (int i = 0; i < kTiles * 2; ++i) {
      const int chunk = first_chunk + c, row = first_row + 8 * i + lane / 4;
      x[c][i / 2][i % 2] = {};
      if (chunk < chunks && row < p.selection.rows)
        x[c][i / 2][i % 2] =
            *reinterpret_cast<const uint4*>(p.x + int64_t{row} * p.hidden + chunk * T::kChunk + lane % 4 * 8);
    }
#pragma unroll
  for (int c = 0; c < T::kChunks; ++c)
#pragma unroll
    for (int term = 2; term >= 0; --term)  // small terms first: the tensor cores truncate sums
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const uint4 &r0 = x[c][t][0], &r1 = x[c][t][1];
        mma_16x8x16(acc[t], {r0.x, r1.x, r0.y, r1.y}, terms[c][0][term], terms[c][1][term]);
        mma_16x8x16(acc[t], {r0.z, r1.z, r0.w, r1.w}, terms[c][2][term], terms[c][3][term]);
      }
}

template <int kTiles, int kPerLane>
__global__ void __cluster_dims__(FewTraits::kCluster, 1, 1) __launch_bounds__(FewTraits::kThreads, 2)
    few_kernel(const __grid_constant__ FewParams p) {
  using T = FewTraits;
  __shared__ float sums[T::kRows][T::kExperts + T::kPad];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rank = blockIdx.x % T::kCluster, part = blockIdx.x / T::kCluster;
  const int first_expert = blockIdx.y * T::kExperts, first_row = blockIdx.z * T::kRows;
  float acc[kTiles][4] = {};
  few_products<kTiles>(p, first_row, first_expert + 8 * warp, (part * T::kCluster + rank) * T::kChunks, acc);
  let_next_kernel_start();
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      *reinterpret_cast<float2*>(&sums[16 * t + 8 * h + lane / 4][8 * warp + lane % 4 * 2]) = {
          acc[t][2 * h], acc[t][2 * h + 1]};
  cluster_arrive();
  cluster_wait();
  const int my_row = rank * T::kRowsOfCta + warp, row = first_row + my_row;
  const int expert = first_expert + 2 * lane;
  float2 sum = {};
  if (my_row < 16 * kTiles && row < p.selection.rows) {
#pragma unroll
    for (int r = 0; r < T::kCluster; ++r) {
      const float2 other = load_cluster(cluster_address(&sums[my_row][2 * lane], r));
      sum.x += other.x, sum.y += other.y;
    }
  }
  if (row < p.selection.rows) {
    float* const out = p.logits + (int64_t{part} * p.selection.rows + row) * p.selection.num_experts;
    if (expert < p.selection.num_experts) post(out + expert, sum.x);
    if (expert + 1 < p.selection.num_experts) post(out + expert + 1, sum.y);
  }
  // Waited for at the end: a CTA may not be gone while others read its sums. Relaxed: the sums have been
  // read, since they are stored, and the stores concern no CTA of the cluster.
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  // The last cluster: all that it waits for have been launched before it.
  const int num_parts = gridDim.x / T::kCluster;
  if (part == num_parts - 1 && blockIdx.y == gridDim.y - 1 && row < p.selection.rows) {
    float logit[kPerLane] = {}, bias[kPerLane];
    load_bias(p.selection, bias);
    await_logits(p, num_parts, row, logit);
    select_experts(p.selection, row, logit, bias);
  }
  cluster_wait();
}

// ---- launches ----

// Above this the large product is faster, which takes about as long for few rows as for many.
constexpr int kManyRows = 768;
constexpr int kManyExperts = 128;

// The workspace: logits of few rows, which are 0 between calls, and then those of many.
int64_t few_logits(const RouterShape& shape, int rows) {
  return int64_t{std::min(rows, kManyRows)} * FewTraits::num_parts(shape.hidden) * shape.num_experts;
}

void route_many(const RouterShape& shape, const RouterArgs& args, const Selection& selection, float* logits,
                cudaStream_t stream) {
  RouterManyParams p{
      .logits = logits, .rows = args.rows, .num_experts = shape.num_experts, .hidden = shape.hidden};
  using Traits = RouterManyTraits;
  SPARROW_CUDA(make_tensor_map({.data = args.x,
                                .rows = args.rows,
                                .columns = shape.hidden,
                                .box_rows = Traits::kRows,
                                .box_columns = Traits::kColumns},
                               &p.x));
  SPARROW_CUDA(make_tensor_map({.data = args.parts,
                                .rows = Traits::kTerms * shape.num_experts,
                                .columns = shape.hidden,
                                .box_rows = Traits::kRouterBox,
                                .box_columns = Traits::kColumns},
                               &p.parts));
  const dim3 grid(ceil_div(args.rows, Traits::kCluster * Traits::kRows) * Traits::kCluster,
                  ceil_div(shape.num_experts, Traits::kExperts));
  SPARROW_CUDA(launch_dependent(router_many_kernel, grid, Traits::kThreads, Traits::kSmemBytes, stream, p));
  SPARROW_CUDA(launch_dependent(select_kernel<kManyExperts / 32>, dim3(ceil_div(args.rows, kSelectWarps)),
                                32 * kSelectWarps, 0, stream, selection, static_cast<const float*>(logits)));
}

template <int kPerLane>
void launch_few(const FewParams& p, cudaStream_t stream) {
  const Selection& s = p.selection;
  const dim3 grid(FewTraits::num_parts(p.hidden) * FewTraits::kCluster,
                  ceil_div(s.num_experts, FewTraits::kExperts), ceil_div(s.rows, FewTraits::kRows));
  const auto kernel = s.rows <= 16   ? few_kernel<1, kPerLane>
                      : s.rows <= 32 ? few_kernel<2, kPerLane>
                                     : few_kernel<4, kPerLane>;
  SPARROW_CUDA(launch_dependent(kernel, grid, FewTraits::kThreads, 0, stream, p));
}

}  // namespace

void split_router(const float* router, __nv_bfloat16* parts, int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  split_router_kernel<<<1024, 256, 0, stream>>>(router, parts, count);
  SPARROW_CUDA(cudaGetLastError());
}

int64_t router_workspace_bytes(const RouterShape& shape, int max_rows) {
  return 4 * (few_logits(shape, max_rows) + int64_t{max_rows} * shape.num_experts);
}

void route(const RouterShape& shape, const RouterArgs& args, cudaStream_t stream) {
  auto* const workspace = static_cast<float*>(args.workspace);
  const bool many = args.rows > kManyRows && shape.num_experts <= kManyExperts;
  const int step = many ? args.rows : kManyRows;
  for (int first = 0; first < args.rows; first += step) {
    RouterArgs part = args;
    part.rows = std::min(step, args.rows - first);
    part.x += int64_t{first} * shape.hidden;
    const Selection selection{.bias = args.bias,
                              .ids = args.ids + int64_t{first} * shape.top_k,
                              .weights = args.weights + int64_t{first} * shape.top_k,
                              .rows = part.rows,
                              .num_experts = shape.num_experts,
                              .top_k = shape.top_k};
    const FewParams few{.x = part.x,
                        .router = args.router,
                        .logits = workspace,
                        .selection = selection,
                        .hidden = shape.hidden};
    if (many)
      route_many(shape, part, selection, workspace + few_logits(shape, kManyRows), stream);
    else if (shape.num_experts <= kManyExperts)
      launch_few<kManyExperts / 32>(few, stream);
    else
      launch_few<kMaxExperts / 32>(few, stream);
  }
}

}  // namespace sparrow::ops::cuda
