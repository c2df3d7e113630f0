// SPDX-License-Identifier: Apache-2.0
// What experts_few.cuh works on, and the warp that brings it: shapes, units, and the producer.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/moe/few/ring_few.cuh"
#include "ops/cuda/moe/few/route_few.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {

struct ExpertsFewParams {
  CUtensorMap gate_up;                  // [(num_experts + 1) * 2 * inter, hidden] in boxes of kRows x kDepth
  const __nv_bfloat16* down = nullptr;  // [num_experts + 1, hidden, inter]
  const __nv_bfloat16* x = nullptr;     // [rows, hidden]
  const int32_t* ids = nullptr;         // [rows, top_k]
  const float* weights = nullptr;       // [rows, top_k]
  __nv_bfloat16* h = nullptr;           // [rows * (top_k + 1), inter], by place
  __nv_bfloat16* out = nullptr;         // [rows, hidden]
  uint32_t* barrier = nullptr;
  int rows = 0, hidden = 0, inter = 0, num_experts = 0, top_k = 0;
  int slab = 0, depth = 0;  // of the second product: channels of a CTA, columns of a piece
  bool holds = false;       // the shared expert's slab has a place of its own, else it goes through the ring
  int ring_offset = 0, ring_bytes = 0;
  float alpha = 0, limit = 0, beta = 0, scaling = 1;
};

struct ExpertsFew {
  using Route = RouteFew<8>;
  static constexpr int kTokens = Route::kTokens;                          // of a share: all rows there are
  static constexpr int kRows = 16, kDepth = 512, kRowBytes = kDepth * 2;  // of a piece of gate and up
  static constexpr int kConsumers = 8, kThreads = (kConsumers + 1) * 32, kCtasPerSm = 2;
  static constexpr int kMaxSlab = kConsumers * 8, kMaxDepth = 384;
  static constexpr int kSumStride = kRows + 4;  // a token's sums; lanes of a store then meet no bank twice
  static_assert(kDepth == kConsumers * 64, "each warp multiplies one line of a piece");

  struct Smem {  // then the shared expert's slab and its hidden rows, then the ring
    union {      // of one product, then of the other
      alignas(16) float unit[kConsumers][kTokens][kSumStride];
      alignas(16) float out[kTokens][kMaxSlab];
    } sums;
    FewRing ring;
    uint64_t held;  // the shared expert's slab is there, and its hidden rows
    Route route;
    int32_t added[kConsumers];        // shares that are in the sums of eight channels
    float factor[Route::kMaxPlaces];  // of each place
    int16_t row[Route::kMaxPlaces];
  };
  static constexpr int kHeldOffset = (sizeof(Smem) + 127) / 128 * 128;
};

enum ExpertsFewBarrier { kFewConsumers = 1 };

// 16 weight rows of one expert times its tokens.
struct FewUnit {
  FewShare share;
  int first_row;
};

__device__ __forceinline__ FewUnit few_unit(const ExpertsFewParams& p, const ExpertsFew::Route& route,
                                            int unit) {
  // The shared expert's units come first: they are known before the routing.
  const int tiles = 2 * p.inter / ExpertsFew::kRows, share = unit / tiles;
  FewUnit u{few_share(p.num_experts, p.rows * p.top_k, p.rows), unit % tiles * ExpertsFew::kRows};
  if (share > 0) u.share = route.shares[share - 1];
  return u;
}

// A share times some columns of this CTA's slab.
struct FewDown {
  FewShare share;
  int chunk, width;
};

__device__ __forceinline__ FewDown few_down(const ExpertsFewParams& p, const ExpertsFew::Route& route,
                                            int step, int chunks) {
  const int share = chunks == 1 ? step : step / chunks;
  FewDown d{route.shares[share], step - share * chunks, 0};
  d.width = min(p.depth, p.inter - d.chunk * p.depth);
  return d;
}

// Loops of this file stay loops: every layer runs this code anew, and fetching it takes longer than branches.
struct FewProducer {
  const ExpertsFewParams& p;
  ExpertsFew::Smem& smem;
  uint8_t* base;  // of the ring
  int channels;   // of this CTA's slab
  FewRingWriter ring;

  __device__ __forceinline__ uint8_t* held() const {
    return reinterpret_cast<uint8_t*>(&smem) + ExpertsFew::kHeldOffset;
  }

  // Asks for a piece's weights if there is room for it.
  __device__ __forceinline__ bool load_unit(const FewUnit& u, int chunk) {
    using T = ExpertsFew;
    const int size = (T::kRows + u.share.count) * T::kRowBytes, offset = ring.fit(size);
    if (offset < 0) return false;
    const int width = min(T::kDepth, p.hidden - chunk * T::kDepth);
    const int slot = ring.place(offset, size, T::kRows * T::kRowBytes + u.share.count * width * 2);
    if (threadIdx.x % 32 == 0)
      hopper::tma_load_3d(base + offset, &p.gate_up, &smem.ring.full[slot], 0,
                          u.share.expert * 2 * p.inter + u.first_row, chunk * (T::kDepth / 64),
                          hopper::kEvictFirst);
    return true;
  }
  __device__ __forceinline__ void load_x(const FewUnit& u, int chunk, int piece) {
    using T = ExpertsFew;
    const int slot = piece % FewRing::kSlots, first = chunk * T::kDepth, t = threadIdx.x % 32;
    if (t >= u.share.count) return;
    const int row = row_of_pair(smem.route.pair_at[u.share.first + t], p.rows * p.top_k, p.top_k);
    hopper::bulk_load(base + smem.ring.offset[slot] + (T::kRows + t) * T::kRowBytes,
                      p.x + int64_t{row} * p.hidden + first, min(T::kDepth, p.hidden - first) * 2,
                      &smem.ring.full[slot]);
  }

  // Rows of `width` of `inter` columns; whole rows lie in one piece.
  __device__ __forceinline__ void copy_rows(uint8_t* tile, const __nv_bfloat16* source, int rows,
                                            const FewDown& d, uint64_t* full) {
    const int lane = threadIdx.x % 32;
    if (p.depth == p.inter) {
      if (lane == 0) hopper::bulk_load(tile, source, rows * p.inter * 2, full);
      return;
    }
#pragma unroll 1
    for (int r = lane; r < rows; r += 32)
      hopper::bulk_load(tile + r * p.depth * 2, source + int64_t{r} * p.inter + d.chunk * p.depth,
                        d.width * 2, full);
  }
  __device__ __forceinline__ const __nv_bfloat16* slab_of(int expert) const {
    return p.down + (int64_t{expert} * p.hidden + int64_t{blockIdx.x} * p.slab) * p.inter;
  }
  __device__ __forceinline__ bool load_down(const FewDown& d) {
    const int size = (p.slab + d.share.count) * p.depth * 2, offset = ring.fit(size);
    if (offset < 0) return false;
    const int slot = ring.place(offset, size, (channels + d.share.count) * d.width * 2);
    copy_rows(base + offset, slab_of(d.share.expert), channels, d, &smem.ring.full[slot]);
    return true;
  }
  __device__ __forceinline__ void load_h(const FewDown& d, int piece) {
    const int slot = piece % FewRing::kSlots;
    copy_rows(base + smem.ring.offset[slot] + p.slab * p.depth * 2, p.h + int64_t{d.share.first} * p.inter,
              d.share.count, d, &smem.ring.full[slot]);
  }

  // Weights of the shared expert, before anything of this step is known.
  __device__ __forceinline__ void start_early(int chunks) {
    if (threadIdx.x % 32 == 0) {
      hopper::prefetch_tensor_map(&p.gate_up);
      if (p.holds && channels > 0) {
        hopper::mbarrier_arrive_expect(&smem.held, (channels + p.rows) * p.inter * 2);
        hopper::bulk_load(held(), slab_of(p.num_experts), channels * p.inter * 2, &smem.held);
      }
    }
    if (static_cast<int>(blockIdx.x) >= 2 * p.inter / ExpertsFew::kRows) return;
    const FewUnit u = few_unit(p, smem.route, blockIdx.x);
#pragma unroll 1
    for (int chunk = 0; chunk < chunks && load_unit(u, chunk);) ++chunk;
  }

  __device__ __forceinline__ void gate_up(int chunks) {
    const int units = smem.route.num_shares * (2 * p.inter / ExpertsFew::kRows);
    int piece = 0;
#pragma unroll 1
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
      const FewUnit u = few_unit(p, smem.route, unit);
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk, ++piece) {
        if (piece == ring.placed)
          while (!load_unit(u, chunk)) ring.release();
        load_x(u, chunk, piece);
      }
    }
  }

  __device__ __forceinline__ void wait_for_hidden(uint32_t phase) {
    GridBarrier{p.barrier}.wait(phase);
    hopper::fence_async_global();
    if (p.holds && threadIdx.x % 32 == 0)
      hopper::bulk_load(held() + p.slab * p.inter * 2, p.h + int64_t{p.rows} * p.top_k * p.inter,
                        p.rows * p.inter * 2, &smem.held);
  }

  // Weights go ahead until the ring is full of them or all are there; only then hidden rows must come.
  __device__ __forceinline__ void down(uint32_t phase) {
    const int chunks = (p.inter + p.depth - 1) / p.depth;
    const int steps = smem.route.num_shares * chunks - (p.holds ? 1 : 0), first = ring.placed;
    bool waited = false;
    // Steps whose weights and whose hidden rows were asked for.
#pragma unroll 1
    for (int step = 0, ready = 0; ready < steps || !waited;) {
      const bool placed = step < steps && load_down(few_down(p, smem.route, step, chunks));
      if (placed) ++step;
      if (!waited && !placed && (step == steps || ring.released >= first)) {
        wait_for_hidden(phase);
        waited = true;
      }
      if (waited)
#pragma unroll 1
        for (; ready < step; ++ready) load_h(few_down(p, smem.route, ready, chunks), first + ready);
      if (!placed && step < steps) ring.release();
    }
  }
};

}  // namespace sparrow::ops::cuda
