// SPDX-License-Identifier: Apache-2.0
// experts_few.cuh with weights that lie as cells: the same one launch, in which latency counts for more than
// bytes. So it differs in what comes how.
//
// Rows of x stay in shared memory as a whole, hidden rows likewise; the ring's pieces are weights alone, one
// plain copy each. Hidden rows come by plain loads, which are back sooner than copies. A CTA has one or two
// runs of the second product, a warp one of them for one expert.
//
// Weights are M of mma.sync, tokens N. Sums have the order of stream_cells.cuh and down_cells.cuh, which take
// over where rows are more.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/moe/few/experts_cells_feed.cuh"
#include "ops/cuda/moe/fragments.cuh"
#include "ops/cuda/mx/multiply.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {

// Cells `stride` apart times the columns of the tokens that belong to them; `x` is where this lane's row
// begins. One cell after the other: with two or three at once the code is longer, and all of it slower.
template <MatrixFormat kFormat, bool kPrepared>
__device__ __forceinline__ void multiply_run(float (&sums)[1][4], uint32_t cell, uint32_t x, int count,
                                             int stride) {
  using Tokens = CellTokens<kPrepared>;
  CellAddress<kFormat> at(cell);
  x = Tokens::address(x);
#pragma unroll 1
  for (; count > 0; --count) {
    CellOperand<kFormat> w[1];
    Tokens tokens;
    w[0].load(at, 0), tokens.load(x);
    multiply_cells(sums, w, tokens.b);
    at += stride * cell_bytes(kFormat), x += stride * kCellColumns * 2;
  }
}

template <typename T>
struct CellsConsumer {
  const ExpertsCellsParams& p;
  typename T::Smem& smem;
  CellsSlab slab;
  PieceRingReader<typename T::Ring> ring;

  __device__ __forceinline__ uint32_t smem_at(int offset) const {
    return hopper::smem_address(&smem) + offset;
  }
  __device__ __forceinline__ float unit_sum(int token, int row) const {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < T::kConsumers; ++w) sum += smem.sums[w][token][row];
    return sum;
  }

  // A channel of a token for each thread: everybody waits for these.
  __device__ __forceinline__ void store_hidden(const CellsUnit& u) {
    constexpr int kChannels = kCellRows / 2;
    const int token = threadIdx.x / kChannels, channel = threadIdx.x % kChannels;
    if (token >= u.share.count) return;
    const float gate = unit_sum(token, channel), up = unit_sum(token, channel + kChannels);
    p.h[int64_t{u.share.first + token} * p.inter + u.run * kChannels + channel] =
        __float2bfloat16_rn(kCellTokensUnit * swiglu(gate, up, p.alpha, p.limit, p.beta));
  }

  __device__ __forceinline__ void gate_up(int pieces) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, cells = p.hidden / kCellColumns;
    const int units = smem.route.num_shares * (2 * p.inter / kCellRows);
    hopper::mbarrier_wait(&smem.x, 0);
#pragma unroll 1
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
      const CellsUnit u = cells_unit(p, smem.route.shares, unit);
      // Rows past the last token give sums that nobody takes.
      const int row = smem.row[u.share.first + min(lane % 8, u.share.count - 1)];
      const uint32_t x = smem_at(p.x_offset) + row * T::token_bytes(p.hidden);
      float sums[1][4] = {};
#pragma unroll 1
      for (int piece = 0; piece < pieces; ++piece) {
        const uint32_t tile = smem_at(p.ring_offset) + ring.wait();
        // A warp has every eighth cell of the row, wherever pieces end.
        const int first = piece * T::kPieceCells, here = min(T::kPieceCells, cells - first);
        multiply_run<T::kFormat, false>(sums, tile + warp * T::kCellBytes,
                                        x + (first + warp) * (kCellColumns * 2),
                                        (here - warp + T::kConsumers - 1) / T::kConsumers, T::kConsumers);
        ring.done();
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
        smem.sums[warp][lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] = sums[0][i] * kCellSumsUnit;
      hopper::named_barrier_sync(kCellsConsumers, T::kConsumers * 32);
      store_hidden(u);
      hopper::named_barrier_sync(kCellsConsumers, T::kConsumers * 32);
    }
    if (threadIdx.x == 0) GridBarrier{p.barrier}.arrive();
  }

  // All hidden rows to shared memory, when all CTAs have stored theirs.
  __device__ __forceinline__ void take_hidden(uint32_t phase) {
    const int vectors = p.inter / 8, all = p.rows * (p.top_k + 1) * vectors;
    if (threadIdx.x == 0) GridBarrier{p.barrier}.wait(phase);
    hopper::named_barrier_sync(kCellsConsumers, T::kConsumers * 32);
#pragma unroll 1
    for (int i = threadIdx.x; i < all; i += T::kConsumers * 32) {
      const int place = i / vectors;
      hopper::store_shared(smem_at(p.h_offset) + place * T::token_bytes(p.inter) + (i - place * vectors) * 16,
                           __ldcg(reinterpret_cast<const uint4*>(p.h) + i));
    }
    hopper::named_barrier_sync(kCellsConsumers, T::kConsumers * 32);
  }

  // A run of one share at a time for each warp, in turn over shares and runs. Who has none of a share need
  // not see its piece before giving it back, unless the piece that lay in its slot before was of this
  // product, too.
  __device__ __forceinline__ void down() {
    const int shares = smem.route.num_shares, cells = p.inter / kCellColumns, lane = threadIdx.x % 32;
    int run = threadIdx.x / 32;  // this warp's, if it is one of the CTA's
#pragma unroll 1
    for (int share = 0; share < shares; ++share) {
      const bool held = share + 1 == shares;
      const FewShare s = smem.route.shares[share];
      uint32_t at = smem_at(T::kHeldOffset);
      if (held)
        hopper::mbarrier_wait(&smem.held, 0);
      else if (run < slab.runs || share >= T::Ring::kSlots)
        at = smem_at(p.ring_offset) + ring.wait();
      if (run < slab.runs) {
        const int place = s.first + min(lane % 8, s.count - 1);
        float sums[1][4] = {};
        multiply_run<T::kFormat, true>(sums, at + run * cells * T::kCellBytes,
                                       smem_at(p.h_offset) + place * T::token_bytes(p.inter), cells, 1);
        store_parts(sums[0], s, run);
      }
      if (!held) ring.done();
      run -= slab.runs;
      if (run < 0) run += T::kConsumers;
    }
  }

  // To be added up when all are there: a rounding of its own, as in down_cells.cuh.
  __device__ __forceinline__ void store_parts(const float (&sums)[4], const FewShare& s, int run) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = lane % 4 * 2 + i % 2, place = s.first + token;
      if (token < s.count) part(place)[run * kCellRows + lane / 4 + i / 2 * 8] = smem.factor[place] * sums[i];
    }
  }
  // What a place adds to its row's channels.
  __device__ __forceinline__ float* part(int place) const {
    return reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(&smem) + p.parts_offset) +
           place * p.runs * kCellRows;
  }

  // Two channels of a row for each thread, by ascending expert; the shared one comes last.
  __device__ __forceinline__ void store_out() {
    const int pairs_of_row = slab.runs * (kCellRows / 2);
    for (int i = threadIdx.x; i < p.rows * pairs_of_row; i += T::kConsumers * 32) {
      const int row = i / pairs_of_row, channel = (i - row * pairs_of_row) * 2;
      float2 sum = {};
      for (int k = 0; k <= p.top_k; ++k) {
        const int place = k < p.top_k ? smem.place_of[row * p.top_k + k] : p.rows * p.top_k + row;
        if (place < 0) continue;
        const float2 v = *reinterpret_cast<const float2*>(part(place) + channel);
        sum.x += v.x, sum.y += v.y;
      }
      *reinterpret_cast<__nv_bfloat162*>(p.out + int64_t{row} * p.hidden + slab.first * kCellRows + channel) =
          __floats2bfloat162_rn(sum.x, sum.y);
    }
  }
};

template <typename T>
__device__ __forceinline__ void init_cells(typename T::Smem& smem) {
  const int i = threadIdx.x;
  if (i < T::Ring::kSlots) {
    hopper::mbarrier_init(&smem.ring.full[i], 1);
    hopper::mbarrier_init(&smem.ring.empty[i], T::kConsumers);
  }
  if (i == T::Ring::kSlots) hopper::mbarrier_init(&smem.held, 1), hopper::mbarrier_init(&smem.x, 1);
  if (i < T::Route::kMaxPairs) smem.place_of[i] = -1;
  hopper::mbarrier_init_fence();
  __syncthreads();
}

template <typename T>
static __global__ void __launch_bounds__(T::kThreads, T::kCtasPerSm)
    experts_cells_kernel(const __grid_constant__ ExpertsCellsParams p) {
  extern __shared__ __align__(128) uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<typename T::Smem*>(smem_bytes);
  const CellsSlab slab = cells_slab(p);
  const int pieces = (p.hidden / kCellColumns + T::kPieceCells - 1) / T::kPieceCells,
            pairs = p.rows * p.top_k;
  const bool produces = threadIdx.x / 32 == T::kConsumers;
  init_cells<T>(smem);
  CellsProducer<T> producer{p, smem, slab, {smem.ring, p.ring_bytes}};
  CellsConsumer<T> consumer{p, smem, slab, {smem.ring}};
  if (produces) producer.start_early(pieces);
  hopper::wait_for_previous_kernel();
  const uint32_t phase = produces || threadIdx.x == 0 ? GridBarrier{p.barrier}.phase() : 0;
  if (produces) producer.load_x();
  route_few(smem.route, p.ids, p.rows, p.num_experts, p.top_k);
  if (produces) {
    producer.gate_up(pieces);
    hopper::let_next_kernel_start();
    if (slab.runs > 0) producer.down(phase);
    return;
  }
  for (int i = threadIdx.x; i < pairs + p.rows; i += T::kConsumers * 32) {
    if (i >= smem.route.num_routed && i < pairs) continue;
    const int pair = smem.route.pair_at[i];
    smem.row[i] = static_cast<int16_t>(row_of_pair(pair, pairs, p.top_k));
    if (pair < pairs) smem.place_of[pair] = static_cast<int16_t>(i);
    smem.factor[i] = (pair < pairs ? p.weights[pair] * p.scaling : 1.0f) * kCellSumsUnit;
  }
  hopper::named_barrier_sync(kCellsConsumers, T::kConsumers * 32);
  consumer.gate_up(pieces);
  // Not earlier: kernels behind this one would take part of the bandwidth.
  hopper::let_next_kernel_start();
  if (slab.runs == 0) return;
  consumer.take_hidden(phase);
  consumer.down();
  hopper::named_barrier_sync(kCellsConsumers, T::kConsumers * 32);
  consumer.store_out();
}

}  // namespace sparrow::ops::cuda
