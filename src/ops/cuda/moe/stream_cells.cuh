// SPDX-License-Identifier: Apache-2.0
// The products of stream.cuh with weights that lie as cells (mx/cell.h): the same units, clusters and
// results, another way to the operands.
//
// Half or a quarter of the bytes are on their way for the same columns, so bytes in flight decide even more:
// pieces of the ring are as long as the tokens that are there. 16 rows of weights are one run of memory, a
// plain copy brings them. A warp decodes whole cells in registers and multiplies them with tokens that
// ldmatrix fetches: gathered ones from rows that are 16 bytes longer than their columns, others from lines of
// 64 columns that the copy engine has swizzled. So no two rows of eight meet on a bank.
#pragma once

#include "ops/cuda/moe/few/ring_few.cuh"
#include "ops/cuda/moe/stream.cuh"
#include "ops/cuda/mx/multiply.cuh"

namespace sparrow::ops::cuda {

struct CellStreamParams : StreamParams {  // `w` is not used; `tokens` brings swizzled lines
  const uint8_t* cells = nullptr;         // [experts * out_rows / 16][columns / 64]
  int token_rows = 0;                     // of a piece, not routed: rows, up to a multiple of eight
  int ring_bytes = 0;
};

// Warps are cut over columns (kWarpsK) and weight rows (kWarpsM, each kTilesPerWarp times 16 of them).
template <MatrixFormat kFormat_, StreamJob kJob_, int kTokens_, int kTilesPerWarp_, int kWarpsM_,
          int kWarpsK_, int kCells_, int kCtas_>
struct CellStreamTraits {
  static constexpr MatrixFormat kFormat = kFormat_;
  static constexpr StreamJob kJob = kJob_;
  static constexpr bool kRouted = kJob == StreamJob::kRoutedGateUp;
  static constexpr bool kSwiglu = kRouted || kJob == StreamJob::kGateUp;
  static constexpr int kTokens = kTokens_, kTokenTiles = kTokens / 8;
  static constexpr bool kScaled = kTokenTiles >= 4;  // before the product
  static constexpr int kTilesPerWarp = kTilesPerWarp_, kWarpsM = kWarpsM_, kWarpsK = kWarpsK_;
  static constexpr int kRowTiles = kTilesPerWarp * kWarpsM, kRows = 16 * kRowTiles;
  static constexpr int kConsumers = kWarpsM * kWarpsK, kThreads = (kConsumers + 2) * 32, kCtasPerSm = kCtas_;
  // Of a piece.
  static constexpr int kCells = kCells_, kDepth = kCells * kCellColumns;
  static constexpr int kCellBytes = cell_bytes(kFormat), kRunBytes = kCells * kCellBytes;
  static constexpr int kAlignment = kRouted ? 128 : 1024;  // of pieces, and of the tokens in them
  static constexpr int kWeightBytes = (kRowTiles * kRunBytes + kAlignment - 1) / kAlignment * kAlignment;
  static constexpr int kTokenBytes = kDepth * 2 + 16;  // a gathered token's
  static constexpr int kMaxPieceBytes = kWeightBytes + kTokens * kTokenBytes;
  static constexpr int kSumStride = kRows + 4;  // a token's sums; lanes of a store then meet no bank twice
  static_assert(kCells % kWarpsK == 0);

  using Ring = PieceRing<32>;
  struct Smem {  // the ring follows
    alignas(16) float sums[kWarpsK][kTokens][kSumStride];
    Ring ring;
    std::conditional_t<kRouted, RouteFew<kTokens>, NoRoute> route;
  };
  static constexpr int kRingOffset = (sizeof(Smem) + 1023) / 1024 * 1024;
};

// One warp asks for weights, another one for tokens: asking takes longer than quantised weights take to come.
// Both count through the ring for themselves, and both announce what they ask for.
template <typename T>
struct CellStreamProducer {
  const CellStreamParams& p;
  typename T::Smem& smem;
  uint8_t* base;  // of the ring
  PieceRingWriter<typename T::Ring> ring;

  __device__ __forceinline__ int piece_bytes(const StreamUnit& u) const {
    const int tokens = T::kRouted ? u.tokens * T::kTokenBytes : p.token_rows * T::kDepth * 2;
    return (T::kWeightBytes + tokens + T::kAlignment - 1) / T::kAlignment * T::kAlignment;
  }
  __device__ __forceinline__ int width(int chunk) const {
    return min(T::kDepth, p.columns - chunk * T::kDepth);
  }
  __device__ __forceinline__ const uint8_t* weights_of(const StreamUnit& u) const {
    return p.cells + int64_t{u.w_row / kCellRows} * (p.columns / kCellColumns) * T::kCellBytes;
  }

  // Asks for the weights of a piece that fits at `offset`.
  __device__ __forceinline__ void load_weights(const uint8_t* source, const StreamUnit& u, int chunk,
                                               int offset, int size) {
    const int run = width(chunk) / kCellColumns * T::kCellBytes, tiles = u.rows / kCellRows;
    const int slot = ring.place(offset, size, tiles * run);
    if (threadIdx.x % 32 == 0) {
      const int tile_bytes = p.columns / kCellColumns * T::kCellBytes;
      source += chunk * T::kRunBytes;
#pragma unroll
      for (int m = 0; m < T::kRowTiles; ++m)
        if (m < tiles)
          hopper::bulk_load(base + offset + m * T::kRunBytes, source + m * tile_bytes, run,
                            &smem.ring.full[slot], hopper::kEvictFirst);
    }
    __syncwarp();
  }

  // Weights depend on no kernel: the first ones fly while the one before this still writes x; of experts only
  // the shared one's.
  __device__ __forceinline__ void start_early(int unit, int rank) {
    const int tiles = (p.out_rows + T::kRows - 1) / T::kRows;
    if (unit >= (T::kRouted ? tiles * ((p.rows + T::kTokens - 1) / T::kTokens) : tiles)) return;
    const StreamUnit u = stream_unit<T>(p, smem, unit, rank);
    const int size = piece_bytes(u);
    for (int chunk = u.first_chunk; chunk < u.end_chunk; ++chunk) {
      const int offset = ring.fit(size);
      if (offset < 0) return;
      load_weights(weights_of(u), u, chunk, offset, size);
    }
  }

  __device__ __forceinline__ void weights(int first_unit, int stride, int rank) {
    const int units = stream_units<T>(p, smem);
    int early = ring.placed;
    for (int unit = first_unit; unit < units; unit += stride) {
      const StreamUnit u = stream_unit<T>(p, smem, unit, rank);
      const uint8_t* source = weights_of(u);
      const int size = piece_bytes(u);
      for (int chunk = u.first_chunk + early; chunk < u.end_chunk; ++chunk)
        load_weights(source, u, chunk, ring.room(size), size);
      early = 0;
    }
  }

  __device__ __forceinline__ void tokens(int first_unit, int stride, int rank) {
    const int units = stream_units<T>(p, smem), lane = threadIdx.x % 32;
    for (int unit = first_unit; unit < units; unit += stride) {
      const StreamUnit u = stream_unit<T>(p, smem, unit, rank);
      const int size = piece_bytes(u);
      const __nv_bfloat16* source = p.x;
      if constexpr (T::kRouted)
        if (lane < u.tokens)
          source +=
              int64_t{row_of_pair(smem.route.pair_at[u.first_place + lane], p.rows * p.top_k, p.top_k)} *
              p.columns;
      for (int chunk = u.first_chunk; chunk < u.end_chunk; ++chunk) {
        const int offset = ring.room(size);
        uint8_t* tile = base + offset + T::kWeightBytes;
        if constexpr (T::kRouted) {
          const int slot = ring.place(offset, size, u.tokens * width(chunk) * 2);
          if (lane < u.tokens)
            hopper::bulk_load(tile + lane * T::kTokenBytes, source + chunk * T::kDepth, width(chunk) * 2,
                              &smem.ring.full[slot]);
        } else {
          const int slot = ring.place(offset, size, p.token_rows * T::kDepth * 2);
          if (lane == 0) hopper::tma_load_3d(tile, &p.tokens, &smem.ring.full[slot], 0, 0, chunk * T::kCells);
        }
        __syncwarp();
      }
    }
  }
};

template <typename T>
struct CellStreamConsumer {
  const CellStreamParams& p;
  typename T::Smem& smem;
  uint32_t base;  // of the ring
  PieceRingReader<typename T::Ring> ring;
  using Sums = float[T::kTilesPerWarp][T::kTokenTiles][4];
  using Operand = std::conditional_t<T::kScaled, ScaledCellOperand<T::kFormat>, CellOperand<T::kFormat>>;

  // Tokens 8 n to 8 n + 7 of a cell's columns: two operands for each 16 of them.
  __device__ __forceinline__ void load_tokens(uint32_t (&b)[8], uint32_t x, int cell, int n, int tokens) {
    const int lane = threadIdx.x % 32;
    uint32_t half[4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int chunk = h * 4 + lane / 8;
      if constexpr (T::kRouted) {
        // Columns of the product past the last token are sums that nobody takes.
        const int t = min(n * 8 + lane % 8, tokens - 1);
        hopper::ldmatrix_x4(half, x + t * T::kTokenBytes + cell * 128 + chunk * 16);
      } else {
        const int t = n * 8 + lane % 8;
        hopper::ldmatrix_x4(half, x + (cell * p.token_rows + t) * 128 + (chunk ^ lane % 8) * 16);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) b[h * 4 + i] = half[i];
    }
    if constexpr (!T::kScaled) prepare_tokens(b);
  }

  template <int kTokenTiles>
  __device__ __forceinline__ void multiply(Sums& acc, uint32_t tile, int cell, int tokens) {
    const int first_tile = threadIdx.x / 32 / T::kWarpsK * T::kTilesPerWarp;
    Operand w[T::kTilesPerWarp];
#pragma unroll
    for (int m = 0; m < T::kTilesPerWarp; ++m)
      w[m].load(tile + (first_tile + m) * T::kRunBytes + cell * T::kCellBytes);
    constexpr int kAtOnce = kTokenTiles < 2 ? 1 : 2;  // token tiles whose products come between each other
    uint32_t a[T::kTilesPerWarp][4][4];
#pragma unroll
    for (int m = 0; m < T::kTilesPerWarp; ++m) w[m].operand(a[m]);
#pragma unroll
    for (int first = 0; first < kTokenTiles; first += kAtOnce) {
      if (first > 0 && first * 8 >= tokens) break;
      uint32_t b[kAtOnce][8];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        // Without a row of its own a tile repeats the last one.
        const int of = T::kRouted ? first + n : min(first + n, p.token_rows / 8 - 1);
        load_tokens(b[n], tile + T::kWeightBytes, cell, of, tokens);
      }
      add_products<kAtOnce>(acc, w, a, b, first);
    }
  }

  template <int kAtOnce>
  __device__ __forceinline__ void add_products(Sums& acc, const Operand (&w)[T::kTilesPerWarp],
                                               const uint32_t (&a)[T::kTilesPerWarp][4][4],
                                               const uint32_t (&b)[kAtOnce][8], int first) {
    const auto each = [](const auto& body) {
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n)
#pragma unroll
        for (int m = 0; m < T::kTilesPerWarp; ++m) body(n, m);
    };
    if constexpr (T::kScaled) {
#pragma unroll
      for (int step = 0; step < 4; ++step)
        each([&](int n, int m) {
          hopper::mma_16x8x16(acc[m][first + n], a[m][step], b[n][step * 2], b[n][step * 2 + 1]);
        });
    } else {
#pragma unroll
      for (int group = 0; group < 2; ++group) {
        float part[kAtOnce][T::kTilesPerWarp][4];
        const int step = group * 2;
        each([&](int n, int m) {
          hopper::mma_16x8x16_first(part[n][m], a[m][step], b[n][step * 2], b[n][step * 2 + 1]);
        });
        each([&](int n, int m) {
          hopper::mma_16x8x16(part[n][m], a[m][step + 1], b[n][step * 2 + 2], b[n][step * 2 + 3]);
        });
        each([&](int n, int m) { w[m].add(acc[m][first + n], part[n][m], group); });
      }
    }
  }

  template <int kTokenTiles>
  __device__ __forceinline__ void unit(const StreamUnit& u) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slice = warp % T::kWarpsK;
    float acc[T::kTilesPerWarp][T::kTokenTiles][4] = {};
    for (int chunk = u.first_chunk; chunk < u.end_chunk; ++chunk) {
      const uint32_t tile = base + ring.wait();
      const int cells = (p.columns - chunk * T::kDepth) / kCellColumns;
#pragma unroll
      for (int c = 0; c < T::kCells / T::kWarpsK; ++c) {
        const int cell = c * T::kWarpsK + slice;
        if (cell < cells) multiply<kTokenTiles>(acc, tile, cell, u.tokens);
      }
      ring.done();
    }
    const int first_row = warp / T::kWarpsK * T::kTilesPerWarp * 16 + lane / 4;
#pragma unroll
    for (int m = 0; m < T::kTilesPerWarp; ++m)
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          smem.sums[slice][n * 8 + lane % 4 * 2 + i % 2][first_row + m * 16 + i / 2 * 8] =
              acc[m][n][i] * (T::kScaled ? 1 : kCellSumsUnit);
  }

  // One unit's columns, added up in smem.sums: by warps, or, in a cluster, in its first slice.
  __device__ __forceinline__ void run(const StreamUnit& u) {
    if (T::kRouted && T::kTokenTiles > 1 && u.tokens <= 8)
      unit<1>(u);
    else
      unit<T::kTokenTiles>(u);
    stream_add_slices<T>(p, smem, u);
  }
};

template <typename T>
__global__ void __launch_bounds__(T::kThreads, T::kCtasPerSm)
    cell_stream_kernel(const __grid_constant__ CellStreamParams p) {
  extern __shared__ __align__(1024) uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<typename T::Smem*>(smem_bytes);
  uint8_t* base = smem_bytes + T::kRingOffset;
  if (threadIdx.x == 0) {
    for (int s = 0; s < T::Ring::kSlots; ++s)
      hopper::mbarrier_init(&smem.ring.full[s], 2), hopper::mbarrier_init(&smem.ring.empty[s], T::kConsumers);
    hopper::mbarrier_init_fence();
  }
  if (!T::kRouted) hopper::let_next_kernel_start();
  __syncthreads();
  const int rank = blockIdx.x % p.splits, first_unit = blockIdx.x / p.splits, stride = gridDim.x / p.splits;
  const int producer_warp = static_cast<int>(threadIdx.x) / 32 - T::kConsumers;  // 0: weights, 1: tokens
  CellStreamProducer<T> producer{p, smem, base, {smem.ring, p.ring_bytes}};
  if (producer_warp == 0) producer.start_early(first_unit, rank);
  if (T::kRouted || producer_warp >= 0) hopper::wait_for_previous_kernel();
  if constexpr (T::kRouted) {
    // Not before the wait: the second product reads the routing as soon as it starts.
    hopper::let_next_kernel_start();
    route_few(smem.route, p.ids, p.rows, p.num_experts, p.top_k);
  }
  if (producer_warp == 0) {
    producer.weights(first_unit, stride, rank);
  } else if (producer_warp == 1) {
    producer.tokens(first_unit, stride, rank);
  } else {
    CellStreamConsumer<T> consumer{p, smem, hopper::smem_address(base), {smem.ring}};
    const int units = stream_units<T>(p, smem);
    for (int unit = first_unit; unit < units; unit += stride) {
      const StreamUnit u = stream_unit<T>(p, smem, unit, rank);
      consumer.run(u);
      if (p.splits > 1) break;  // a cluster has one unit
      stream_store<T>(p, smem, u, 0);
      hopper::named_barrier_sync(kStreamSums, T::kConsumers * 32);
    }
  }
  if (p.splits > 1) stream_store_cluster<T>(p, smem, first_unit, rank);
}

}  // namespace sparrow::ops::cuda
