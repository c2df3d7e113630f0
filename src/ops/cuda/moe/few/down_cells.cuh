// SPDX-License-Identifier: Apache-2.0
// down_few.cuh for weights that lie as cells: each CTA owns a slab of the hidden channels, walks through all
// shares in ascending expert id and adds weight * product to sums in shared memory.
//
// A slab is a few runs of 16 channels, which is less than decoding needs warps. So a warp takes a run of one
// share (or of some columns of it) at a time, in turn over shares and runs, weights in M and tokens in N;
// only the additions to a row's sums wait for each other.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/moe/few/ring_few.cuh"
#include "ops/cuda/moe/few/route_few.cuh"
#include "ops/cuda/mx/decode.cuh"
#include "ops/gpu_workspace.h"
#include "sm90/mma.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {

struct DownCellsParams {
  const uint8_t* w = nullptr;        // [num_experts + 1, hidden / 16, inter / 64] cells
  const __nv_bfloat16* h = nullptr;  // [pieces of `cells`][places][64 cells + 8], from the kernel before
  const int32_t* ids = nullptr;      // [rows, top_k], not from the kernel before
  const float* weights = nullptr;    // [rows, top_k], likewise
  __nv_bfloat16* out = nullptr;      // [rows, hidden]
  int rows = 0, hidden = 0, inter = 0, num_experts = 0, top_k = 0;
  int runs = 0, cells = 0;  // 16s of channels of a CTA; cells of a run in a piece
  int64_t h_piece = 0;      // all places of a piece
  int ring_offset = 0, ring_bytes = 0;
  float scaling = 1;
};

struct DownCells {
  using Route = RouteFew<16>;
  using Ring = PieceRing<32>;
  static constexpr int kTokens = Route::kTokens, kConsumers = 15, kThreads = (kConsumers + 2) * 32;
  static constexpr int kMaxRuns = 4;
  struct Smem {  // then sums [rows][16 runs], then the ring
    Ring ring;
    int32_t added[kMaxRuns];  // steps that are in the sums of a run
    float factor[Route::kMaxPlaces];
    int16_t row[Route::kMaxPlaces];
    Route route;
  };
  static constexpr int kSumsOffset = (sizeof(Smem) + 127) / 128 * 128;
  static constexpr int sum_stride(int runs) { return runs * 16 + 4; }
};

enum DownCellsBarrier { kDownCellsConsumers = 1 };

// A share times some columns of the slab.
struct DownCellsStep {
  FewShare share;
  int chunk, cells;
};

template <MatrixFormat kFormat>
struct DownCellsWork {
  static constexpr int kCellBytes = cell_bytes(kFormat);
  const DownCellsParams& p;
  DownCells::Smem& smem;
  uint8_t* base;  // of the ring
  int runs;       // of this CTA: the last one may have fewer
  int chunks;     // steps of a share

  __device__ __forceinline__ DownCellsStep step_of(int step) const {
    const int share = chunks == 1 ? step : step / chunks;
    DownCellsStep s{smem.route.shares[share], step - share * chunks, 0};
    s.cells = min(p.cells, p.inter / kCellColumns - s.chunk * p.cells);
    return s;
  }
  __device__ __forceinline__ int weight_bytes() const { return p.runs * p.cells * kCellBytes; }
  // 16 bytes more than its columns take, so that no two of eight rows meet on a bank.
  __device__ __forceinline__ int token_bytes() const {
    return (p.cells * kCellColumns + kHiddenPieceGap) * 2;
  }

  __device__ __forceinline__ int piece_bytes(const DownCellsStep& s) const {
    return weight_bytes() + s.share.count * token_bytes();
  }

  __device__ __forceinline__ void load_weights(PieceRingWriter<DownCells::Ring>& ring, const DownCellsStep& s,
                                               int offset) {
    const int run = s.cells * kCellBytes, slot = ring.place(offset, piece_bytes(s), runs * run);
    const int lane = threadIdx.x % 32, per_run = p.inter / kCellColumns;
    const int64_t first_run = int64_t{s.share.expert} * (p.hidden / kCellRows) + blockIdx.x * p.runs;
    const uint8_t* source = p.w + (first_run * per_run + s.chunk * p.cells) * kCellBytes;
    uint64_t* full = &smem.ring.full[slot];
    if (p.cells == per_run) {
      if (lane == 0) hopper::bulk_load(base + offset, source, runs * run, full, hopper::kEvictFirst);
    } else if (lane < runs) {
      hopper::bulk_load(base + offset + lane * p.cells * kCellBytes,
                        source + int64_t{lane} * per_run * kCellBytes, run, full, hopper::kEvictFirst);
    }
    __syncwarp();
  }

  // One warp asks for weights, another one for tokens; both count through the ring for themselves.
  __device__ __forceinline__ void produce_weights() {
    const int steps = smem.route.num_shares * chunks;
    PieceRingWriter<DownCells::Ring> ring{smem.ring, p.ring_bytes};
    for (int step = 0; step < steps; ++step) {
      const DownCellsStep s = step_of(step);
      load_weights(ring, s, ring.room(piece_bytes(s)));
    }
  }
  __device__ __forceinline__ void produce_tokens() {
    const int steps = smem.route.num_shares * chunks;
    PieceRingWriter<DownCells::Ring> ring{smem.ring, p.ring_bytes};
    hopper::wait_for_previous_kernel();
    for (int step = 0; step < steps; ++step) {
      const DownCellsStep s = step_of(step);
      const int bytes = s.share.count * token_bytes(), offset = ring.room(piece_bytes(s));
      const int slot = ring.place(offset, piece_bytes(s), bytes);
      if (threadIdx.x % 32 == 0)
        hopper::bulk_load(base + offset + weight_bytes(),
                          p.h + s.chunk * p.h_piece + s.share.first * (token_bytes() / 2), bytes,
                          &smem.ring.full[slot]);
      __syncwarp();
    }
  }

  // Two chains of sums: half the wait.
  template <int kTokenTiles>
  __device__ __forceinline__ void multiply(float (&acc)[2][2][4], uint32_t tile, int run,
                                           const DownCellsStep& s) {
    const int lane = threadIdx.x % 32;
    const uint32_t weights = tile + run * p.cells * kCellBytes;
    uint32_t x[kTokenTiles];
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n)  // columns past the last token are sums that nobody takes
      x[n] = tile + weight_bytes() + min(n * 8 + lane % 8, s.share.count - 1) * token_bytes() + lane / 8 * 16;
#pragma unroll 2
    for (int c = 0; c < s.cells; ++c) {
      LaneCell<kFormat> w;
      w.load(weights + c * kCellBytes);
      uint32_t b[kTokenTiles][2][4], a[4][4];
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) hopper::ldmatrix_x4(b[n][half], x[n] + c * 128 + half * 64);
      w.template decode<0>(a[0]);
      w.template decode<1>(a[1]);
      w.template decode<2>(a[2]);
      w.template decode<3>(a[3]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n)
          hopper::mma_16x8x16(acc[i % 2][n], a[i], b[n][i / 2][i % 2 * 2], b[n][i / 2][i % 2 * 2 + 1]);
    }
  }

  // After the warp that had the step before for this run, whichever it was. What can be known before is.
  template <int kTokenTiles>
  __device__ __forceinline__ void add_in_turn(float* sums, const float (&acc)[2][2][4], int run, int step,
                                              const FewShare& share) {
    const int lane = threadIdx.x % 32;
    float* at[kTokenTiles][2];
    float part[kTokenTiles][4];
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int place = share.first + min(n * 8 + lane % 4 * 2 + i, share.count - 1);
        at[n][i] = sums + smem.row[place] * DownCells::sum_stride(p.runs) + run * 16 + lane / 4;
        const float factor = smem.factor[place];
        part[n][i] = factor * (acc[0][n][i] + acc[1][n][i]);
        part[n][i + 2] = factor * (acc[0][n][i + 2] + acc[1][n][i + 2]);
      }
    volatile int32_t* added = &smem.added[run];
    while (*added != step) continue;
    __threadfence_block();
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) part[n][i] += at[n][i % 2][i / 2 * 8];
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (n * 8 + lane % 4 * 2 + i % 2 < share.count) at[n][i % 2][i / 2 * 8] = part[n][i];
    __threadfence_block();
    __syncwarp();
    if (lane == 0) *added = step + 1;
  }

  // Where each place's share of the result goes, and how much of it.
  __device__ __forceinline__ void load_factors() {
    const int pairs = p.rows * p.top_k;
    for (int i = threadIdx.x; i < pairs + p.rows; i += DownCells::kConsumers * 32) {
      if (i >= smem.route.num_routed && i < pairs) continue;
      const int pair = smem.route.pair_at[i];
      smem.row[i] = static_cast<int16_t>(row_of_pair(pair, pairs, p.top_k));
      smem.factor[i] = pair < pairs ? p.weights[pair] * p.scaling : 1.0f;
    }
    hopper::named_barrier_sync(kDownCellsConsumers, DownCells::kConsumers * 32);
  }

  __device__ __forceinline__ void store(const float* sums, int run) {
    for (int i = threadIdx.x % 32; i < p.rows * 2; i += 32) {
      const int row = i / 2, channel = run * 16 + i % 2 * 8;
      const auto* sum = reinterpret_cast<const float4*>(sums + row * DownCells::sum_stride(p.runs) + channel);
      const float4 low = sum[0], high = sum[1];
      const __nv_bfloat162 packed[4] = {
          __floats2bfloat162_rn(low.x, low.y), __floats2bfloat162_rn(low.z, low.w),
          __floats2bfloat162_rn(high.x, high.y), __floats2bfloat162_rn(high.z, high.w)};
      *reinterpret_cast<uint4*>(p.out + int64_t{row} * p.hidden + int64_t{blockIdx.x} * p.runs * 16 +
                                channel) = *reinterpret_cast<const uint4*>(packed);
    }
  }

  __device__ __forceinline__ void consume(float* sums) {
    const int steps = smem.route.num_shares * chunks;
    for (int item = threadIdx.x / 32; item < steps * runs; item += DownCells::kConsumers) {
      const int step = item / runs, run = item % runs, slot = step % DownCells::Ring::kSlots;
      const DownCellsStep s = step_of(step);
      float acc[2][2][4] = {};
      hopper::mbarrier_wait(&smem.ring.full[slot], step / DownCells::Ring::kSlots % 2);
      const uint32_t tile = hopper::smem_address(base) + smem.ring.offset[slot];
      const bool narrow = s.share.count <= 8;
      if (narrow)
        multiply<1>(acc, tile, run, s);
      else
        multiply<2>(acc, tile, run, s);
      __syncwarp();
      if (threadIdx.x % 32 == 0) hopper::mbarrier_arrive(&smem.ring.empty[slot]);
      if (narrow)
        add_in_turn<1>(sums, acc, run, step, s.share);
      else
        add_in_turn<2>(sums, acc, run, step, s.share);
      if (step + 1 == steps) store(sums, run);
    }
  }
};

template <MatrixFormat kFormat>
__global__ void __launch_bounds__(DownCells::kThreads, 1)
    down_cells_kernel(const __grid_constant__ DownCellsParams p) {
  extern __shared__ __align__(128) uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<DownCells::Smem*>(smem_bytes);
  auto* sums = reinterpret_cast<float*>(smem_bytes + DownCells::kSumsOffset);
  const int runs = min(p.runs, p.hidden / kCellRows - static_cast<int>(blockIdx.x) * p.runs);
  hopper::let_next_kernel_start();
  if (threadIdx.x == 0) {
    for (int s = 0; s < DownCells::Ring::kSlots; ++s)
      hopper::mbarrier_init(&smem.ring.full[s], 2), hopper::mbarrier_init(&smem.ring.empty[s], runs);
    hopper::mbarrier_init_fence();
  }
  if (threadIdx.x < DownCells::kMaxRuns) smem.added[threadIdx.x] = 0;
  for (int i = threadIdx.x; i < p.rows * DownCells::sum_stride(p.runs); i += blockDim.x) sums[i] = 0;
  // The routing is older than the kernel before, which lets this one start only after it has waited itself.
  route_few(smem.route, p.ids, p.rows, p.num_experts, p.top_k);
  const int chunks = (p.inter / kCellColumns + p.cells - 1) / p.cells;
  DownCellsWork<kFormat> work{p, smem, smem_bytes + p.ring_offset, runs, chunks};
  if (threadIdx.x / 32 == DownCells::kConsumers) {
    work.produce_weights();
  } else if (threadIdx.x / 32 == DownCells::kConsumers + 1) {
    work.produce_tokens();
  } else {
    // While the first weights fly.
    work.load_factors();
    work.consume(sums);
  }
}

}  // namespace sparrow::ops::cuda
