// SPDX-License-Identifier: Apache-2.0
// Gate and up of few rows with weights that lie as cells, where there are more rows than one launch takes.
//
// All runs of 16 weight rows (times the rows that go to their expert) are one line, and each CTA has an equal
// part of it, which it takes in tiles of a few runs. Eight warps share two runs, each takes every eighth cell
// of both; that gives the eight chains of sums of stream_cells.cuh and experts_cells.cuh. Another warp adds
// them up and stores, so that nobody waits at the end of a tile. Rows of x come to a CTA once for all its
// tiles of a share, not once for each: for quantised weights they would be a third of all bytes.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/moe/few/route_few.cuh"
#include "ops/cuda/moe/fragments.cuh"
#include "ops/cuda/moe/stream.cuh"
#include "ops/cuda/mx/multiply.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {

struct GateUpCellsParams {
  const uint8_t* cells = nullptr;    // of [(num_experts + 1) * 2 * inter, hidden]
  const __nv_bfloat16* x = nullptr;  // [rows, hidden]
  const int32_t* ids = nullptr;      // [rows, top_k]
  __nv_bfloat16* out = nullptr;      // [places, inter] as `layout` says
  HiddenLayout layout;
  int rows = 0, hidden = 0, inter = 0, num_experts = 0, top_k = 0;
  int64_t shared_bytes = 0;  // of the shared expert's cells, the last ones
  int held_rows = 0;         // of x, in shared memory
  float alpha = 0, limit = 0, beta = 0;
};

// A piece is kPieceCells cells of all runs of a tile.
template <MatrixFormat kFormat_, int kRuns_, int kPieceCells_, int kSlots_>
struct GateUpCells {
  static constexpr MatrixFormat kFormat = kFormat_;
  using Route = RouteFew<8, kFewRows>;
  static constexpr int kRuns = kRuns_, kChains = 8, kWarpRuns = 2;
  static constexpr int kConsumers = kChains * kRuns / kWarpRuns, kThreads = (kConsumers + 3) * 32;
  static constexpr int kPieceCells = kPieceCells_, kSlots = kSlots_;
  static constexpr int kCellBytes = cell_bytes(kFormat), kRunBytes = kPieceCells * kCellBytes;
  static constexpr int kPieceBytes = kRuns * kRunBytes;
  static constexpr int kShares = 2;  // whose rows are held at once, at most
  static_assert(kPieceCells % kChains == 0 && kPieceBytes % 128 == 0);

  // A row of x in shared memory: ldmatrix reads eight of them at once.
  static constexpr int row_bytes(int hidden) { return hidden * 2 + 16; }

  struct Smem {                       // then pieces, then rows of x
    float4 sums[kChains][kRuns][32];  // of each lane
    uint64_t full[kSlots], empty[kSlots], rows_full[kShares], rows_empty[kShares];
    uint64_t sums_full, sums_empty;
    Route route;
  };
  static constexpr int kEmptyOffset = kSlots * sizeof(uint64_t);  // from a slot's `full` to its `empty`
  static constexpr int kRingOffset = (sizeof(Smem) + 127) / 128 * 128;
  static constexpr int kRowsOffset = kRingOffset + kSlots * kPieceBytes;
};

// The runs of the line that are this CTA's, and the shares they belong to.
struct GateUpCellsPart {
  int runs, cells;  // of a share; of a run
  int first, end, first_share, end_share;
};

// What is multiplied at a time: runs of one share. The last ones of a share, or of a CTA, may be fewer.
struct GateUpCellsTile {
  int share, first, runs;
};
template <typename T>
__device__ __forceinline__ GateUpCellsTile gate_up_cells_tile(const GateUpCellsPart& part, int run) {
  const int share = run / part.runs, first = run - share * part.runs;
  return {share, first, min(T::kRuns, min(part.runs - first, part.end - run))};
}

template <typename T>
__device__ __forceinline__ GateUpCellsPart gate_up_cells_part(const GateUpCellsParams& p, int shares) {
  GateUpCellsPart part{2 * p.inter / kCellRows, p.hidden / kCellColumns, 0, 0, 0, 0};
  const int all = shares * part.runs, cta = blockIdx.x, ctas = gridDim.x;
  part.first = static_cast<int>(int64_t{all} * cta / ctas);
  part.end = static_cast<int>(int64_t{all} * (cta + 1) / ctas);
  part.first_share = part.first / part.runs;
  part.end_share = (part.end + part.runs - 1) / part.runs;
  return part;
}

// The warp that brings rows of x, a share's at a time. They take turns in `held_rows` places.
template <typename T>
__device__ __forceinline__ void gate_up_cells_rows(const GateUpCellsParams& p, typename T::Smem& smem,
                                                   const GateUpCellsPart& part) {
  const int lane = threadIdx.x % 32, pairs = p.rows * p.top_k;
  uint8_t* held = reinterpret_cast<uint8_t*>(&smem) + T::kRowsOffset;
  int used = 0, place = 0, released = part.first_share;
  for (int share = part.first_share; part.first < part.end && share < part.end_share; ++share) {
    const FewShare s = smem.route.shares[share];
    for (; used + s.count > p.held_rows || share - released >= T::kShares; ++released) {
      const int i = released - part.first_share;
      hopper::mbarrier_wait(&smem.rows_empty[i % T::kShares], i / T::kShares % 2);
      used -= smem.route.shares[released].count;
    }
    uint64_t* full = &smem.rows_full[(share - part.first_share) % T::kShares];
    if (lane == 0) hopper::mbarrier_arrive_expect(full, s.count * p.hidden * 2);
    __syncwarp();
    if (lane < s.count) {
      const int row = row_of_pair(smem.route.pair_at[s.first + lane], pairs, p.top_k);
      const int at = place + lane < p.held_rows ? place + lane : place + lane - p.held_rows;
      hopper::bulk_load(held + at * T::row_bytes(p.hidden), p.x + int64_t{row} * p.hidden, p.hidden * 2,
                        full);
    }
    __syncwarp();
    used += s.count, place += s.count;
    if (place >= p.held_rows) place -= p.held_rows;
  }
}

// The warp that asks for weights, lane r for run r of a tile.
template <typename T>
__device__ __forceinline__ void gate_up_cells_weights(const GateUpCellsParams& p, typename T::Smem& smem,
                                                      const GateUpCellsPart& part) {
  const int lane = threadIdx.x % 32;
  uint8_t* ring = reinterpret_cast<uint8_t*>(&smem) + T::kRingOffset;
  int slot = 0, parity = 1;
  GateUpCellsTile tile;
  for (int run = part.first; run < part.end; run += tile.runs) {
    tile = gate_up_cells_tile<T>(part, run);
    const int64_t first = int64_t{smem.route.shares[tile.share].expert} * part.runs + tile.first;
    const uint8_t* from = p.cells + (first + lane) * part.cells * T::kCellBytes;
    for (int cell = 0; cell < part.cells; cell += T::kPieceCells) {
      const int bytes = min(T::kPieceCells, part.cells - cell) * T::kCellBytes;
      hopper::mbarrier_wait(&smem.empty[slot], parity);
      if (lane == 0) hopper::mbarrier_arrive_expect(&smem.full[slot], tile.runs * bytes);
      __syncwarp();
      if (lane < tile.runs)
        hopper::bulk_load(ring + slot * T::kPieceBytes + lane * T::kRunBytes, from + cell * T::kCellBytes,
                          bytes, &smem.full[slot], hopper::kEvictFirst);
      __syncwarp();
      if (++slot == T::kSlots) slot = 0, parity ^= 1;
    }
  }
}

// The warp that adds up the chains of a tile. A lane has channel lane / 4 of two rows: gate first, then up.
template <typename T>
__device__ __forceinline__ void gate_up_cells_finish(const GateUpCellsParams& p, typename T::Smem& smem,
                                                     const GateUpCellsPart& part) {
  const int lane = threadIdx.x % 32;
  int parity = 0;
  GateUpCellsTile tile;
  for (int run = part.first; run < part.end; run += tile.runs, parity ^= 1) {
    tile = gate_up_cells_tile<T>(part, run);
    const FewShare s = smem.route.shares[tile.share];
    hopper::mbarrier_wait(&smem.sums_full, parity);
    float4 sum[T::kRuns] = {};
#pragma unroll
    for (int c = 0; c < T::kChains; ++c)
#pragma unroll
      for (int r = 0; r < T::kRuns; ++r) sum[r] = add(sum[r], smem.sums[c][r][lane]);
    __syncwarp();
    if (lane == 0) hopper::mbarrier_arrive(&smem.sums_empty);
#pragma unroll
    for (int r = 0; r < T::kRuns; ++r) {
      const int column = (tile.first + r) * (kCellRows / 2) + lane / 4, in_piece = column / p.layout.columns;
      __nv_bfloat16* out = p.out + in_piece * p.layout.piece + (column - in_piece * p.layout.columns);
      const float gate[2] = {sum[r].x, sum[r].y}, up[2] = {sum[r].z, sum[r].w};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = lane % 4 * 2 + i;
        if (r < tile.runs && token < s.count)
          out[int64_t{s.first + token} * p.layout.stride] =
              __float2bfloat16_rn(p.layout.unit * swiglu(gate[i], up[i], p.alpha, p.limit, p.beta));
      }
    }
  }
}

// A warp that multiplies: one chain of two runs of each tile.
template <typename T>
struct GateUpCellsWarp {
  const GateUpCellsParams& p;
  typename T::Smem& smem;
  const GateUpCellsPart part;
  const int lane = threadIdx.x % 32, chain = threadIdx.x / 32 % T::kChains;
  const int first_run = static_cast<int>(threadIdx.x) / 32 / T::kChains * T::kWarpRuns;
  int slot = 0, parity = 0, share = 0, place = 0;
  // Of this warp's first cell in the slot. Addresses are carried along: made anew from their parts they are
  // a chain of ten instructions before each load.
  CellAddress<T::kFormat> cells{hopper::smem_address(&smem) + T::kRingOffset + first_run * T::kRunBytes +
                                chain * T::kCellBytes};
  uint32_t full = hopper::smem_address(smem.full);
  using Sums = float[T::kWarpRuns][4];
  using Tokens = CellTokens<>;

  __device__ __forceinline__ void multiply(Sums& sums, int offset, uint32_t x) const {
    CellOperand<T::kFormat> w[T::kWarpRuns];
    Tokens tokens;
#pragma unroll
    for (int r = 0; r < T::kWarpRuns; ++r) w[r].load(cells, offset + r * T::kRunBytes);
    tokens.load(x);
    multiply_cells(sums, w, tokens.b);
  }

  // `x`: where this lane's row begins. Of two runs one may be missing: what lies in its place is multiplied,
  // and nobody takes its sums.
  __device__ __forceinline__ void multiply_tile(Sums& sums, uint32_t x, bool has_runs) {
    constexpr int kCellTokenBytes = kCellColumns * 2;
    x = Tokens::address(x) + chain * kCellTokenBytes;
    for (int first = chain; first < part.cells + chain; first += T::kPieceCells) {
      hopper::mbarrier_wait(full, parity);
#pragma unroll
      for (int c = 0; c < T::kPieceCells; c += T::kChains)
        if (has_runs && first + c < part.cells) multiply(sums, c * T::kCellBytes, x + c * kCellTokenBytes);
      __syncwarp();
      if (lane == 0) hopper::mbarrier_arrive(full + T::kEmptyOffset);
      x += T::kPieceCells * kCellTokenBytes;
      cells += T::kPieceBytes, full += sizeof(uint64_t);
      if (++slot == T::kSlots) {
        slot = 0, parity ^= 1;
        cells += -T::kSlots * T::kPieceBytes, full -= T::kSlots * sizeof(uint64_t);
      }
    }
  }

  // The barriers of a share are used again: nobody leaves before its rows are there, or one warp could leave
  // two shares on the same barrier.
  __device__ __forceinline__ void wait_for_rows() const {
    const int i = share - part.first_share;
    hopper::mbarrier_wait(&smem.rows_full[i % T::kShares], i / T::kShares % 2);
  }
  __device__ __forceinline__ void leave_share() {
    wait_for_rows();
    __syncwarp();
    if (lane == 0) hopper::mbarrier_arrive(&smem.rows_empty[(share - part.first_share) % T::kShares]);
    place += smem.route.shares[share++].count;
    if (place >= p.held_rows) place -= p.held_rows;
  }

  __device__ __forceinline__ void run() {
    if (part.first >= part.end) return;
    share = part.first_share;
    const uint32_t held = hopper::smem_address(&smem) + T::kRowsOffset;
    int sums_parity = 1;
    GateUpCellsTile tile;
    for (int run = part.first; run < part.end; run += tile.runs, sums_parity ^= 1) {
      tile = gate_up_cells_tile<T>(part, run);
      while (share < tile.share) leave_share();
      // Rows past the last one give sums that nobody takes.
      int at = place + min(lane % 8, smem.route.shares[share].count - 1);
      if (at >= p.held_rows) at -= p.held_rows;
      Sums sums = {};
      wait_for_rows();
      multiply_tile(sums, held + at * T::row_bytes(p.hidden), first_run < tile.runs);
      hopper::mbarrier_wait(&smem.sums_empty, sums_parity);
#pragma unroll
      for (int r = 0; r < T::kWarpRuns; ++r)
        smem.sums[chain][first_run + r][lane] = {sums[r][0] * kCellSumsUnit, sums[r][1] * kCellSumsUnit,
                                                 sums[r][2] * kCellSumsUnit, sums[r][3] * kCellSumsUnit};
      __syncwarp();
      if (lane == 0) hopper::mbarrier_arrive(&smem.sums_full);
    }
    while (share < part.end_share) leave_share();
  }
};

template <typename T>
__device__ __forceinline__ void gate_up_cells_init(typename T::Smem& smem) {
  for (int s = 0; s < T::kSlots; ++s) {
    hopper::mbarrier_init(&smem.full[s], 1);
    hopper::mbarrier_init(&smem.empty[s], T::kConsumers);
  }
  for (int s = 0; s < T::kShares; ++s) {
    hopper::mbarrier_init(&smem.rows_full[s], 1);
    hopper::mbarrier_init(&smem.rows_empty[s], T::kConsumers);
  }
  hopper::mbarrier_init(&smem.sums_full, T::kConsumers);
  hopper::mbarrier_init(&smem.sums_empty, 1);
  hopper::mbarrier_init_fence();
}

template <typename T>
__global__ void __launch_bounds__(T::kThreads, 1)
    gate_up_cells_kernel(const __grid_constant__ GateUpCellsParams p) {
  extern __shared__ __align__(128) uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<typename T::Smem*>(smem_bytes);
  if (threadIdx.x == 0) gate_up_cells_init<T>(smem);
  // The shared expert's weights are needed whatever the routing is: the memory would idle until it is known.
  if (threadIdx.x == 32) {
    const int64_t part = (p.shared_bytes / gridDim.x + 15) / 16 * 16, first = part * blockIdx.x;
    if (first < p.shared_bytes)
      hopper::prefetch_l2(p.cells + p.num_experts * p.shared_bytes + first,
                          static_cast<uint32_t>(min(part, p.shared_bytes - first)));
  }
  hopper::wait_for_previous_kernel();
  // Not before the wait: the second product reads the routing as soon as it starts.
  hopper::let_next_kernel_start();
  route_few(smem.route, p.ids, p.rows, p.num_experts, p.top_k);  // has barriers
  const GateUpCellsPart part = gate_up_cells_part<T>(p, smem.route.num_shares);
  const int warp = threadIdx.x / 32;
  if (warp < T::kConsumers)
    GateUpCellsWarp<T>{p, smem, part}.run();
  else if (warp == T::kConsumers)
    gate_up_cells_weights<T>(p, smem, part);
  else if (warp == T::kConsumers + 1)
    gate_up_cells_rows<T>(p, smem, part);
  else
    gate_up_cells_finish<T>(p, smem, part);
}

}  // namespace sparrow::ops::cuda
