// SPDX-License-Identifier: Apache-2.0
// A product of few rows with weights that are read once, bound by the memory's bandwidth: gate and up of the
// experts that were hit (or of a dense MLP) with the activation, or a plain linear layer.
//
// The work is a line of units: kRows weight rows of one expert times at most kTokens rows of x. A producer
// warp keeps a ring of shared memory full, one tensor copy for a stage's weights (copies of single rows cost
// it 45-70 cycles each, whatever their size); eight warps multiply, weights in M and tokens in N, cut over
// the columns (and, for tall tiles, over the weight rows), and add their partial sums through shared memory.
// Where a layer has fewer units than the device has room for, the CTAs of a cluster share a unit's columns
// and add their sums through distributed shared memory, always in the same order.
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "ops/cuda/moe/few/route_few.cuh"
#include "ops/cuda/moe/fragments.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {

enum class StreamJob : uint8_t {
  kRoutedGateUp,  // rows of x by expert, activation
  kGateUp,        // one expert, all rows, activation
  kLinearBf16,    // one matrix, all rows
  kLinearF32,
};

// How hidden rows lie between the two products: [piece][place][stride], a piece being some columns of all
// rows. The second product of cells takes a share's rows of a piece by one copy, each 16 bytes longer than
// its columns.
struct HiddenLayout {
  int columns = 0, stride = 0;  // of a row in a piece
  int64_t piece = 0;            // all places of one
  float unit = 1;               // what they are multiplied with for it (mx/multiply.cuh)
};

struct StreamParams {
  CUtensorMap w;                     // [experts * out_rows, columns] in boxes of a stage
  CUtensorMap tokens;                // [rows, columns] likewise, not routed only
  const __nv_bfloat16* x = nullptr;  // [rows, columns], routed only
  const int32_t* ids = nullptr;      // [rows, top_k], routed only
  void* out = nullptr;  // gate and up: bf16 [places, out_rows / 2], routed: as `hidden` says; linear: [rows,
                        // out_rows], bf16 or f32
  int rows = 0, columns = 0, out_rows = 0, num_experts = 0, top_k = 0;
  HiddenLayout hidden;         // of the result, routed only
  int stages = 0, splits = 1;  // of the ring; CTAs of a cluster, which share a unit's columns
  float alpha = 0, limit = 0, beta = 0;
};

struct NoRoute {};

template <StreamJob kJob_, int kTokens_, int kRowTiles, int kWarpsK_, int kDepth_, int kCtas_>
struct StreamTraits {
  static constexpr StreamJob kJob = kJob_;
  static constexpr bool kRouted = kJob == StreamJob::kRoutedGateUp;
  static constexpr bool kSwiglu = kRouted || kJob == StreamJob::kGateUp;
  static constexpr int kTokens = kTokens_, kTokenTiles = kTokens / 8, kRows = 16 * kRowTiles;
  static constexpr int kDepth = kDepth_, kRowBytes = kDepth * 2;  // columns of a stage
  static constexpr int kConsumers = 8, kThreads = (kConsumers + 1) * 32, kCtasPerSm = kCtas_;
  static constexpr int kWarpsK = kWarpsK_, kWarpsM = kConsumers / kWarpsK;
  static constexpr int kTilesPerWarp = kRowTiles / kWarpsM, kLinesPerWarp = kDepth / 64 / kWarpsK;
  // Token tiles that are multiplied together: enough independent sums, registers for their operands.
  static constexpr int kMaxTilesAtOnce = 4 / kTilesPerWarp;
  static constexpr int kStageBytes = (kRows + kTokens) * kRowBytes, kMaxStages = 8;
  // Weights lie in lines of 64 columns as the copy engine brings them, [line][row]; so do tokens, except that
  // gathered ones come row by row.
  static constexpr int kTokenRowBytes = kRouted ? kRowBytes : 128,
                       kTokenLineBytes = kRouted ? 128 : kTokens * 128;
  static constexpr int kSumStride = kRows + 4;  // a token's sums; lanes of a store then meet no bank twice
  static_assert(kWarpsM * kWarpsK == kConsumers && kTilesPerWarp * kWarpsM == kRowTiles &&
                kLinesPerWarp >= 1);

  struct Smem {  // the ring follows
    alignas(16) float sums[kWarpsK][kTokens][kSumStride];
    uint64_t full[kMaxStages], empty[kMaxStages];
    std::conditional_t<kRouted, RouteFew<kTokens>, NoRoute> route;
  };
  static constexpr int kRingOffset = (sizeof(Smem) + 127) / 128 * 128;
  static constexpr int smem_bytes(int stages) { return kRingOffset + stages * kStageBytes; }
};

enum StreamBarrier { kStreamSums = 1 };

// A unit, and the columns of it that are this CTA's.
struct StreamUnit {
  int w_row, first_place, tokens, first_row, rows, first_chunk, end_chunk;
};

template <typename T>
__device__ __forceinline__ StreamUnit stream_unit(const StreamParams& p, const typename T::Smem& smem,
                                                  int unit, int rank) {
  const int tiles = (p.out_rows + T::kRows - 1) / T::kRows;
  const int chunks = (p.columns + T::kDepth - 1) / T::kDepth, per_rank = (chunks + p.splits - 1) / p.splits;
  StreamUnit u;
  int expert = 0;
  if constexpr (T::kRouted) {
    // The shared expert's units come first: they are known before the routing.
    const int share = unit / tiles, shared = (p.rows + T::kTokens - 1) / T::kTokens;
    FewShare s = few_share(p.num_experts, p.rows * p.top_k + share * T::kTokens,
                           min(T::kTokens, p.rows - share * T::kTokens));
    if (share >= shared) s = smem.route.shares[share - shared];
    expert = s.expert, u.first_place = s.first, u.tokens = s.count;
  } else {
    u.first_place = 0, u.tokens = p.rows;
  }
  u.first_row = unit % tiles * T::kRows;
  u.rows = min(T::kRows, p.out_rows - u.first_row);
  u.w_row = expert * p.out_rows + u.first_row;
  u.first_chunk = min(chunks, rank * per_rank), u.end_chunk = min(chunks, u.first_chunk + per_rank);
  return u;
}

template <typename T>
__device__ __forceinline__ int stream_units(const StreamParams& p, const typename T::Smem& smem) {
  const int tiles = (p.out_rows + T::kRows - 1) / T::kRows;
  if constexpr (T::kRouted) return smem.route.num_shares * tiles;
  return tiles;
}

template <typename T>
struct StreamRing {
  typename T::Smem& smem;
  uint8_t* base;
  int stages, stage = 0, parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  __device__ __forceinline__ uint8_t* tile() { return base + stage * T::kStageBytes; }
};

// Announces a stage and asks for its weights.
template <typename T>
__device__ __forceinline__ void stream_weights(const StreamParams& p, const StreamUnit& u, int chunk,
                                               uint8_t* tile, uint64_t* bar) {
  const int width = min(T::kDepth, p.columns - chunk * T::kDepth);
  if (threadIdx.x % 32 == 0) {
    const int token_bytes = T::kRouted ? u.tokens * width * 2 : T::kTokens * T::kRowBytes;
    hopper::mbarrier_arrive_expect(bar, T::kRows * T::kRowBytes + token_bytes);
    hopper::tma_load_3d(tile, &p.w, bar, 0, u.w_row, chunk * (T::kDepth / 64), hopper::kEvictFirst);
  }
  __syncwarp();
}

template <typename T>
__device__ __forceinline__ void stream_tokens(const StreamParams& p, const typename T::Smem& smem,
                                              const StreamUnit& u, int chunk, uint8_t* tile, uint64_t* bar) {
  tile += T::kRows * T::kRowBytes;
  if constexpr (T::kRouted) {
    const int first = chunk * T::kDepth, width = min(T::kDepth, p.columns - first);
    for (int t = threadIdx.x % 32; t < u.tokens; t += 32) {
      const int row = row_of_pair(smem.route.pair_at[u.first_place + t], p.rows * p.top_k, p.top_k);
      hopper::bulk_load(tile + t * T::kRowBytes, p.x + int64_t{row} * p.columns + first, width * 2, bar);
    }
  } else if (threadIdx.x % 32 == 0) {
    hopper::tma_load_3d(tile, &p.tokens, bar, 0, 0, chunk * (T::kDepth / 64));
  }
}

// Weights depend on no kernel: the first stages' fly while the one before this still writes x; of experts
// only the shared one's. Returns how many stages are on their way.
template <typename T>
__device__ __forceinline__ int stream_early(const StreamParams& p, typename T::Smem& smem, uint8_t* ring_base,
                                            int unit, int rank) {
  const int tiles = (p.out_rows + T::kRows - 1) / T::kRows;
  int known = tiles, early = 0;
  if constexpr (T::kRouted) known *= (p.rows + T::kTokens - 1) / T::kTokens;
  if (unit < known) {
    const StreamUnit u = stream_unit<T>(p, smem, unit, rank);
    early = min(p.stages, u.end_chunk - u.first_chunk);
    for (int i = 0; i < early; ++i)
      stream_weights<T>(p, u, u.first_chunk + i, ring_base + i * T::kStageBytes, &smem.full[i]);
  }
  return early;
}

template <typename T>
__device__ __forceinline__ void stream_produce(const StreamParams& p, typename T::Smem& smem,
                                               uint8_t* ring_base, int first_unit, int stride, int rank,
                                               int early) {
  const int units = stream_units<T>(p, smem);
  StreamRing<T> ring{smem, ring_base, p.stages};
  for (int unit = first_unit; unit < units; unit += stride) {
    const StreamUnit u = stream_unit<T>(p, smem, unit, rank);
    for (int chunk = u.first_chunk; chunk < u.end_chunk; ++chunk) {
      uint64_t* full = &smem.full[ring.stage];
      if (early > 0) {
        --early;
      } else {
        hopper::mbarrier_wait(&smem.empty[ring.stage], ring.parity ^ 1);
        stream_weights<T>(p, u, chunk, ring.tile(), full);
      }
      stream_tokens<T>(p, smem, u, chunk, ring.tile(), full);
      ring.next();
    }
  }
}

// The sums of four neighbouring weight rows and one token: over this CTA's warps, or over the cluster.
template <typename T>
__device__ __forceinline__ float4 stream_sums(const typename T::Smem& smem, int splits, int token, int row) {
  float4 sum = {};
  if (splits == 1) {
#pragma unroll
    for (int w = 0; w < T::kWarpsK; ++w)
      sum = add(sum, *reinterpret_cast<const float4*>(&smem.sums[w][token][row]));
  } else {
    for (int rank = 0; rank < splits; ++rank) {
      sum = add(sum, hopper::load_cluster<float4>(hopper::cluster_address(&smem.sums[0][token][row], rank)));
    }
  }
  return sum;
}

__device__ __forceinline__ void store_bf16(__nv_bfloat16* out, const float4& v) {
  __nv_bfloat162 packed[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
  *reinterpret_cast<uint2*>(out) = *reinterpret_cast<const uint2*>(packed);
}

template <typename T>
__device__ __forceinline__ void stream_store(const StreamParams& p, const typename T::Smem& smem,
                                             const StreamUnit& u, int rank) {
  const int first = threadIdx.x + rank * T::kConsumers * 32, step = T::kConsumers * 32 * p.splits;
  if constexpr (T::kSwiglu) {
    constexpr int kFours = T::kRows / 8;  // of hidden channels
    auto* out = static_cast<__nv_bfloat16*>(p.out);
    int stride = p.out_rows / 2, column = u.first_row / 2;
    if constexpr (T::kRouted) {  // a unit never lies in two pieces
      out += column / p.hidden.columns * p.hidden.piece;
      stride = p.hidden.stride, column %= p.hidden.columns;
    }
    for (int i = first; i < u.tokens * kFours; i += step) {
      const int token = i / kFours, channel = i % kFours * 4, gate_row = channel / 8 * 16 + channel % 8;
      if (gate_row >= u.rows) continue;
      const float4 gate = stream_sums<T>(smem, p.splits, token, gate_row);
      const float4 up = stream_sums<T>(smem, p.splits, token, gate_row + 8);
      float4 h = {
          swiglu(gate.x, up.x, p.alpha, p.limit, p.beta), swiglu(gate.y, up.y, p.alpha, p.limit, p.beta),
          swiglu(gate.z, up.z, p.alpha, p.limit, p.beta), swiglu(gate.w, up.w, p.alpha, p.limit, p.beta)};
      if constexpr (T::kRouted)
        h.x *= p.hidden.unit, h.y *= p.hidden.unit, h.z *= p.hidden.unit, h.w *= p.hidden.unit;
      store_bf16(out + int64_t{u.first_place + token} * stride + column + channel, h);
    }
  } else {
    constexpr int kFours = T::kRows / 4;
    for (int i = first; i < u.tokens * kFours; i += step) {
      const int token = i / kFours, row = i % kFours * 4;
      if (row >= u.rows) continue;
      const float4 sum = stream_sums<T>(smem, p.splits, token, row);
      const int64_t at = int64_t{token} * p.out_rows + u.first_row + row;
      if constexpr (T::kJob == StreamJob::kLinearF32)
        *reinterpret_cast<float4*>(static_cast<float*>(p.out) + at) = sum;
      else
        store_bf16(static_cast<__nv_bfloat16*>(p.out) + at, sum);
    }
  }
}

template <typename T, int kTokenTiles>
__device__ __forceinline__ void stream_multiply(float (&acc)[T::kTilesPerWarp][T::kTokenTiles][4],
                                                uint32_t tile, int width, int tokens) {
  constexpr int kAtOnce = kTokenTiles < T::kMaxTilesAtOnce ? kTokenTiles : T::kMaxTilesAtOnce;
  const int warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4;
  const uint32_t weights = tile + (warp / T::kWarpsK * T::kTilesPerWarp * 16 + row) * 128;
  const uint32_t x = tile + T::kRows * T::kRowBytes + row * T::kTokenRowBytes;
#pragma unroll
  for (int l = 0; l < T::kLinesPerWarp; ++l) {
    const int line = warp % T::kWarpsK * T::kLinesPerWarp + l;
    if (line * 64 >= width) break;
    Line a[T::kTilesPerWarp][2];
#pragma unroll
    for (int m = 0; m < T::kTilesPerWarp; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) a[m][h] = load_line(weights + (m * 16 + h * 8 + line * T::kRows) * 128);
#pragma unroll
    for (int first = 0; first < kTokenTiles; first += kAtOnce) {
      if (first * 8 >= tokens) break;
      Line b[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n)
        b[n] = load_line(x + (first + n) * 8 * T::kTokenRowBytes + line * T::kTokenLineBytes);
        // A sum's four products depend on each other: other sums' come between them.
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n)
#pragma unroll
          for (int m = 0; m < T::kTilesPerWarp; ++m)
            multiply_words(acc[m][first + n], a[m][0], a[m][1], b[n], i);
    }
  }
}

// When all consumers have come: a cluster's CTAs add up their warps' sums, in the first slice.
template <typename T>
__device__ __forceinline__ void stream_add_slices(const StreamParams& p, typename T::Smem& smem,
                                                  const StreamUnit& u) {
  hopper::named_barrier_sync(kStreamSums, T::kConsumers * 32);
  if (p.splits == 1) return;
  constexpr int kFours = T::kRows / 4;
  for (int i = threadIdx.x; i < u.tokens * kFours; i += T::kConsumers * 32)
    *reinterpret_cast<float4*>(&smem.sums[0][i / kFours][i % kFours * 4]) =
        stream_sums<T>(smem, 1, i / kFours, i % kFours * 4);
}

// The result of a cluster's unit, by all threads of its CTAs.
template <typename T>
__device__ __forceinline__ void stream_store_cluster(const StreamParams& p, const typename T::Smem& smem,
                                                     int unit, int rank) {
  __syncwarp();
  hopper::cluster_arrive();
  hopper::cluster_wait();
  if (threadIdx.x / 32 < T::kConsumers) stream_store<T>(p, smem, stream_unit<T>(p, smem, unit, rank), rank);
  // Nobody may leave while others read its sums.
  __syncwarp();
  hopper::cluster_arrive();
  hopper::cluster_wait();
}

// One unit's columns, added up in smem.sums: by warps, or, in a cluster, in its first slice.
template <typename T>
__device__ __forceinline__ void stream_consume(const StreamParams& p, typename T::Smem& smem,
                                               StreamRing<T>& ring, const StreamUnit& u) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float acc[T::kTilesPerWarp][T::kTokenTiles][4] = {};
  for (int chunk = u.first_chunk; chunk < u.end_chunk; ++chunk) {
    hopper::mbarrier_wait(&smem.full[ring.stage], ring.parity);
    const uint32_t tile = hopper::smem_address(ring.tile());
    const int width = min(T::kDepth, p.columns - chunk * T::kDepth);
    // Most experts have few tokens: products with none cost power, and with it clock.
    if (T::kRouted && T::kTokenTiles > 1 && u.tokens <= 8)
      stream_multiply<T, 1>(acc, tile, width, u.tokens);
    else
      stream_multiply<T, T::kTokenTiles>(acc, tile, width, u.tokens);
    __syncwarp();
    if (lane == 0) hopper::mbarrier_arrive(&smem.empty[ring.stage]);
    ring.next();
  }
  const int slice = warp % T::kWarpsK, first_row = warp / T::kWarpsK * T::kTilesPerWarp * 16 + lane / 4;
#pragma unroll
  for (int m = 0; m < T::kTilesPerWarp; ++m)
#pragma unroll
    for (int n = 0; n < T::kTokenTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        smem.sums[slice][n * 8 + lane % 4 * 2 + i % 2][first_row + m * 16 + i / 2 * 8] = acc[m][n][i];
  stream_add_slices<T>(p, smem, u);
}

template <typename T>
__global__ void __launch_bounds__(T::kThreads, T::kCtasPerSm)
    stream_kernel(const __grid_constant__ StreamParams p) {
  extern __shared__ __align__(128) uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<typename T::Smem*>(smem_bytes);
  uint8_t* ring_base = smem_bytes + T::kRingOffset;
  if (threadIdx.x == 0) {
    for (int s = 0; s < p.stages; ++s)
      hopper::mbarrier_init(&smem.full[s], 1), hopper::mbarrier_init(&smem.empty[s], T::kConsumers);
    hopper::mbarrier_init_fence();
  }
  if (!T::kRouted) hopper::let_next_kernel_start();
  __syncthreads();
  const int rank = blockIdx.x % p.splits, first_unit = blockIdx.x / p.splits, stride = gridDim.x / p.splits;
  const bool produces = threadIdx.x / 32 == T::kConsumers;
  int early = 0;
  if (produces) early = stream_early<T>(p, smem, ring_base, first_unit, rank);
  if (T::kRouted || produces) hopper::wait_for_previous_kernel();
  if constexpr (T::kRouted) {
    // Not before the wait: down_few reads the routing as soon as it starts.
    hopper::let_next_kernel_start();
    route_few(smem.route, p.ids, p.rows, p.num_experts, p.top_k);
  }
  if (produces) {
    stream_produce<T>(p, smem, ring_base, first_unit, stride, rank, early);
  } else {
    StreamRing<T> ring{smem, ring_base, p.stages};
    const int units = stream_units<T>(p, smem);
    for (int unit = first_unit; unit < units; unit += stride) {
      const StreamUnit u = stream_unit<T>(p, smem, unit, rank);
      stream_consume<T>(p, smem, ring, u);
      if (p.splits > 1) break;  // a cluster has one unit
      stream_store<T>(p, smem, u, 0);
      hopper::named_barrier_sync(kStreamSums, T::kConsumers * 32);
    }
  }
  if (p.splits > 1) stream_store_cluster<T>(p, smem, first_unit, rank);
}

}  // namespace sparrow::ops::cuda
