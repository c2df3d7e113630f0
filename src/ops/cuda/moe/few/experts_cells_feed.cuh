// SPDX-License-Identifier: Apache-2.0
// What experts_cells.cuh works on, and the warp that brings it: shapes, units, and the producer.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/moe/few/ring_few.cuh"
#include "ops/cuda/moe/few/route_few.cuh"
#include "ops/cuda/mx/cell.h"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {

struct ExpertsCellsParams {
  const uint8_t* gate_up = nullptr;  // cells of [(num_experts + 1) * 2 * inter, hidden]
  const uint8_t* down = nullptr;     // of [(num_experts + 1) * hidden, inter]
  const __nv_bfloat16* x = nullptr;  // [rows, hidden]
  const int32_t* ids = nullptr;      // [rows, top_k]
  const float* weights = nullptr;    // [rows, top_k]
  __nv_bfloat16* h = nullptr;        // [rows * (top_k + 1), inter], by place
  __nv_bfloat16* out = nullptr;      // [rows, hidden]
  uint32_t* barrier = nullptr;
  int rows = 0, hidden = 0, inter = 0, num_experts = 0, top_k = 0;
  int runs = 0;  // of the second product, of a CTA at most
  int x_offset = 0, h_offset = 0, parts_offset = 0, ring_offset = 0, ring_bytes = 0;  // in shared memory
  float alpha = 0, limit = 0, beta = 0, scaling = 1;
};

// A run: the cells of 16 rows, which lie in one piece of memory.
template <MatrixFormat kFormat_>
struct ExpertsCells {
  static constexpr MatrixFormat kFormat = kFormat_;
  using Route = RouteFew<8>;
  using Ring = PieceRing<16>;
  static constexpr int kTokens = Route::kTokens;  // of a share: all rows there are
  static constexpr int kConsumers = 8, kThreads = (kConsumers + 1) * 32, kCtasPerSm = 2;
  static constexpr int kCellBytes = cell_bytes(kFormat);
  static constexpr int kPieceCells = 16, kPieceBytes = kPieceCells * kCellBytes;  // of gate and up
  static constexpr int kMaxRuns = kConsumers;                                     // of the second product
  static constexpr int kSumStride = kCellRows + 4;  // a token's; lanes of a store then meet no bank twice
  static_assert(kPieceCells % kConsumers == 0 && kPieceBytes % 128 == 0);

  // A row of tokens in shared memory: ldmatrix reads eight of them at once.
  static constexpr int token_bytes(int columns) { return columns * 2 + 16; }

  struct Smem {  // then the shared expert's runs, rows of x, hidden rows, all shares of the result, the ring
    alignas(16) float sums[kConsumers][kTokens][kSumStride];  // of a unit
    Ring ring;
    uint64_t held, x;  // the shared expert's runs are there; the rows of x are
    Route route;
    int16_t place_of[Route::kMaxPairs];  // < 0: the pair is not there
    float factor[Route::kMaxPlaces];     // of each place
    int16_t row[Route::kMaxPlaces];
  };
  static constexpr int kHeldOffset = (sizeof(Smem) + 127) / 128 * 128;
};

enum ExpertsCellsBarrier { kCellsConsumers = 1 };

// A run of gate and up of one expert times its tokens.
struct CellsUnit {
  FewShare share;
  int run;  // of this expert
};

__device__ __forceinline__ CellsUnit cells_unit(const ExpertsCellsParams& p, const FewShare* shares,
                                                int unit) {
  // The shared expert's units come first: they are known before the routing.
  const int runs = 2 * p.inter / kCellRows, share = unit / runs;
  CellsUnit u{few_share(p.num_experts, p.rows * p.top_k, p.rows), unit % runs};
  if (share > 0) u.share = shares[share - 1];
  return u;
}

// The runs of the second product that are this CTA's, dealt evenly.
struct CellsSlab {
  int first, runs;
};

__device__ __forceinline__ CellsSlab cells_slab(const ExpertsCellsParams& p) {
  const int all = p.hidden / kCellRows, cta = blockIdx.x, ctas = gridDim.x;
  const int each = all / ctas, more = all - each * ctas;
  return {cta * each + min(cta, more), each + (cta < more ? 1 : 0)};
}

// Loops of this file stay loops: every layer runs this code anew, and fetching it takes longer than branches.
template <typename T>
struct CellsProducer {
  const ExpertsCellsParams& p;
  typename T::Smem& smem;
  CellsSlab slab;
  PieceRingWriter<typename T::Ring> ring;

  __device__ __forceinline__ uint8_t* smem_at(int offset) const {
    return reinterpret_cast<uint8_t*>(&smem) + offset;
  }

  // Asks for a piece if there is room for it.
  __device__ __forceinline__ bool load(const uint8_t* from, int bytes) {
    const int offset = ring.fit(bytes);
    if (offset < 0) return false;
    const int slot = ring.place(offset, bytes, bytes);
    if (threadIdx.x % 32 == 0)
      hopper::bulk_load(smem_at(p.ring_offset + offset), from, bytes, &smem.ring.full[slot],
                        hopper::kEvictFirst);
    return true;
  }
  __device__ __forceinline__ bool load_unit(const CellsUnit& u, int piece) {
    const int cells = p.hidden / kCellColumns, first = piece * T::kPieceCells;
    const int64_t run = int64_t{u.share.expert} * (2 * p.inter / kCellRows) + u.run;
    return load(p.gate_up + (run * cells + first) * T::kCellBytes,
                min(T::kPieceCells, cells - first) * T::kCellBytes);
  }
  // This CTA's runs of an expert.
  __device__ __forceinline__ const uint8_t* down_of(int expert) const {
    const int64_t first = int64_t{expert} * (p.hidden / kCellRows) + slab.first;
    return p.down + first * (p.inter / kCellColumns) * T::kCellBytes;
  }
  __device__ __forceinline__ int slab_bytes() const {
    return slab.runs * (p.inter / kCellColumns) * T::kCellBytes;
  }

  // Weights of the shared expert, before anything of this step is known.
  __device__ __forceinline__ void start_early(int pieces) {
    if (threadIdx.x % 32 == 0 && slab.runs > 0) {
      hopper::mbarrier_arrive_expect(&smem.held, slab_bytes());
      hopper::bulk_load(smem_at(T::kHeldOffset), down_of(p.num_experts), slab_bytes(), &smem.held,
                        hopper::kEvictFirst);
    }
    if (static_cast<int>(blockIdx.x) >= 2 * p.inter / kCellRows) return;
    const CellsUnit u = cells_unit(p, smem.route.shares, blockIdx.x);
#pragma unroll 1
    for (int piece = 0; piece < pieces && load_unit(u, piece);) ++piece;
  }

  __device__ __forceinline__ void load_x() {
    const int row = threadIdx.x % 32;
    if (row == 0) hopper::mbarrier_arrive_expect(&smem.x, p.rows * p.hidden * 2);
    __syncwarp();
    if (row < p.rows)
      hopper::bulk_load(smem_at(p.x_offset + row * T::token_bytes(p.hidden)), p.x + int64_t{row} * p.hidden,
                        p.hidden * 2, &smem.x);
  }

  __device__ __forceinline__ void gate_up(int pieces) {
    const int units = smem.route.num_shares * (2 * p.inter / kCellRows);
    int early = ring.placed;
#pragma unroll 1
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
      const CellsUnit u = cells_unit(p, smem.route.shares, unit);
#pragma unroll 1
      for (int piece = 0; piece < pieces; ++piece)
        if (--early < 0)
          while (!load_unit(u, piece)) ring.release();
    }
  }

  // Whether this CTA has no routed expert's unit of the first product.
  __device__ __forceinline__ bool ends_early() const {
    const int shared = 2 * p.inter / kCellRows, units = smem.route.num_shares * shared;
    const int cta = blockIdx.x, ctas = gridDim.x;
    return cta >= units || (cta < shared && cta + ctas >= units);
  }

  // What a CTA that ends early asked for right away would come before weights of gate and up, which all wait
  // for.
  __device__ __forceinline__ void down(uint32_t phase) {
    if (ends_early()) GridBarrier{p.barrier}.wait_for_half(phase);
#pragma unroll 1
    for (int share = 0; share + 1 < smem.route.num_shares; ++share)
      while (!load(down_of(smem.route.shares[share].expert), slab_bytes())) ring.release();
  }
};

}  // namespace sparrow::ops::cuda
