// SPDX-License-Identifier: Apache-2.0
// down_few.cuh for weights that lie as cells: each CTA owns a slab of the hidden channels, walks through all
// shares in ascending expert id and adds weight * product to sums in shared memory.
//
// A slab is a few runs of 16 channels, which is less than decoding needs warps. So a warp takes a run of one
// share (or of some columns of it) at a time, in turn over shares and runs, weights in M and tokens in N;
// only the additions to a row's sums wait for each other.
//
// A slab's weights of one share are few, so what asks for them must be short: one thread, addresses that are
// carried along, and slots of the ring that are alike, with room for eight rows; shares have no more.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/moe/few/route_few.cuh"
#include "ops/cuda/mx/multiply.cuh"
#include "ops/gpu_workspace.h"
#include "sm90/memory.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {

struct DownCellsParams {
  const uint8_t* w = nullptr;        // [num_experts + 1, hidden / 16, inter / 64] cells
  const __nv_bfloat16* h = nullptr;  // [pieces of `cells`][places][64 cells + 8], from the kernel before
  const int32_t* ids = nullptr;      // [rows, top_k], not from the kernel before
  const float* weights = nullptr;    // [rows, top_k], likewise
  __nv_bfloat16* out = nullptr;      // [rows, hidden]
  int rows = 0, hidden = 0, inter = 0, num_experts = 0, top_k = 0;
  int runs = 0, cells = 0;  // 16s of channels of a CTA; cells of a run in a slot
  int64_t h_piece = 0;      // all places of a piece
  int ring_offset = 0, slots = 0;
  float scaling = 1;
};

struct DownCells {
  using Route = RouteFew<8, kFewRows>;
  static constexpr int kTokens = Route::kTokens, kMaxConsumers = 15;  // warps, and two that ask for copies
  static constexpr int threads(int consumers) { return (consumers + 2) * 32; }
  static constexpr int kMaxRuns = 4, kMaxSlots = 32;
  struct Smem {  // then sums [rows][16 runs], then the ring
    uint64_t full[kMaxSlots], empty[kMaxSlots];
    int32_t added[kMaxRuns];  // steps that are in the sums of a run
    float factor[Route::kMaxPlaces];
    int16_t row[Route::kMaxPlaces];
    Route route;
  };
  static constexpr int kSumsOffset = (sizeof(Smem) + 127) / 128 * 128;
  static constexpr int sum_stride(int runs) { return runs * 16 + 4; }
  // A row in a slot: 16 bytes more than its columns take, so that no two of eight meet on a bank.
  static constexpr int token_bytes(int cells) { return (cells * kCellColumns + kHiddenPieceGap) * 2; }
  static constexpr int weight_bytes(MatrixFormat format, int runs, int cells) {
    return runs * cells * cell_bytes(format);
  }
  static constexpr int slot_bytes(MatrixFormat format, int runs, int cells) {
    return (weight_bytes(format, runs, cells) + kTokens * token_bytes(cells) + 127) / 128 * 128;
  }
};

enum DownCellsBarrier { kDownCellsConsumers = 1 };

template <MatrixFormat kFormat>
struct DownCellsWork {
  static constexpr int kCellBytes = cell_bytes(kFormat);
  using Tokens = CellTokens<true>;
  const DownCellsParams& p;
  DownCells::Smem& smem;
  int runs;    // of this CTA: the last one may have fewer
  int chunks;  // steps of a share: one for each piece of its columns
  const int consumers = static_cast<int>(blockDim.x) / 32 - 2;
  const uint32_t ring = hopper::smem_address(&smem) + p.ring_offset;
  const uint32_t full = hopper::smem_address(smem.full), empty = hopper::smem_address(smem.empty);

  __device__ __forceinline__ int slot_bytes() const {
    return DownCells::slot_bytes(kFormat, p.runs, p.cells);
  }
  __device__ __forceinline__ int weight_bytes() const {
    return DownCells::weight_bytes(kFormat, p.runs, p.cells);
  }
  __device__ __forceinline__ int token_bytes() const { return DownCells::token_bytes(p.cells); }
  __device__ __forceinline__ int cells_of(int chunk) const {
    return min(p.cells, p.inter / kCellColumns - chunk * p.cells);
  }

  // Calls ask(share, chunk, slot, its barrier) for each step, when the slot is free; one thread.
  template <typename Ask>
  __device__ __forceinline__ void produce(const Ask& ask) {
    const int shares = smem.route.num_shares, bytes = slot_bytes();
    int slot = 0, parity = 1;
    uint32_t at = ring;
#pragma unroll 1
    for (int s = 0; s < shares; ++s) {
      const FewShare share = smem.route.shares[s];
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk) {
        hopper::mbarrier_wait(empty + slot * 8, parity);
        ask(share, chunk, at, full + slot * 8);
        at += bytes;
        if (++slot == p.slots) slot = 0, parity ^= 1, at = ring;
      }
    }
  }

  // One warp asks for weights, another one for tokens.
  __device__ __forceinline__ void produce_weights() {
    const int per_run = p.inter / kCellColumns, run_bytes = per_run * kCellBytes;
    const int64_t expert_bytes = int64_t{p.hidden / kCellRows} * run_bytes;
    const uint8_t* const slab = p.w + int64_t{blockIdx.x} * p.runs * run_bytes;
    if (chunks == 1)
      return produce([&](const FewShare& share, int, uint32_t slot, uint32_t bar) {
        hopper::mbarrier_arrive_expect(bar, runs * run_bytes);
        hopper::bulk_load(slot, slab + share.expert * expert_bytes, runs * run_bytes, bar,
                          hopper::kEvictFirst);
      });
    produce([&](const FewShare& share, int chunk, uint32_t slot, uint32_t bar) {
      const int bytes = cells_of(chunk) * kCellBytes;
      const uint8_t* from = slab + share.expert * expert_bytes + chunk * p.cells * kCellBytes;
      hopper::mbarrier_arrive_expect(bar, runs * bytes);
#pragma unroll 1
      for (int r = 0; r < runs; ++r, from += run_bytes)
        hopper::bulk_load(slot + r * p.cells * kCellBytes, from, bytes, bar, hopper::kEvictFirst);
    });
  }
  __device__ __forceinline__ void produce_tokens() {
    hopper::wait_for_previous_kernel();
    const int row_bytes = token_bytes(), offset = weight_bytes();
    const auto* const h = reinterpret_cast<const uint8_t*>(p.h);
    produce([&](const FewShare& share, int chunk, uint32_t slot, uint32_t bar) {
      const int bytes = share.count * row_bytes;
      hopper::mbarrier_arrive_expect(bar, bytes);
      hopper::bulk_load(slot + offset, h + chunk * p.h_piece * 2 + share.first * row_bytes, bytes, bar);
    });
  }

  __device__ __forceinline__ void multiply(float (&acc)[1][4], uint32_t slot, int run, int count, int cells) {
    CellAddress<kFormat> at(slot + run * p.cells * kCellBytes);
    // Columns past the last token are sums that nobody takes.
    uint32_t row = Tokens::address(slot + weight_bytes() +
                                   min(static_cast<int>(threadIdx.x) % 8, count - 1) * token_bytes());
    const auto next_cell = [&] {
      CellOperand<kFormat> w[1];
      Tokens x;
      w[0].load(at, 0), x.load(row);
      multiply_cells(acc, w, x.b);
      at += kCellBytes, row += kCellColumns * 2;
    };
    // Written out: with a loop that it is to unroll by three nvcc 13.0 forgets the cells that are left.
    if (cells % 3 == 0) {
      for (int c = 0; c < cells; c += 3) next_cell(), next_cell(), next_cell();
      return;
    }
#pragma unroll 2
    for (int c = 0; c < cells; ++c) next_cell();
  }

  // After the warp that had the step before for this run, whichever it was. What can be known before is.
  __device__ __forceinline__ void add_in_turn(float* sums, const float (&acc)[4], int run, int step,
                                              const FewShare& share) {
    const int lane = threadIdx.x % 32;
    float* at[2];
    float part[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int place = share.first + min(lane % 4 * 2 + i, share.count - 1);
      at[i] = sums + smem.row[place] * DownCells::sum_stride(p.runs) + run * 16 + lane / 4;
      const float factor = smem.factor[place];
      part[i] = __fmul_rn(factor, acc[i]), part[i + 2] = __fmul_rn(factor, acc[i + 2]);
    }
    const uint32_t added = hopper::smem_address(&smem.added[run]);
    while (hopper::load_shared_acquire(added) != step) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i) part[i] += at[i % 2][i / 2 * 8];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (lane % 4 * 2 + i % 2 < share.count) at[i % 2][i / 2 * 8] = part[i];
    __syncwarp();
    if (lane == 0) hopper::store_shared_release(added, step + 1);
  }

  // Where each place's share of the result goes, and how much of it.
  __device__ __forceinline__ void load_factors() {
    const int pairs = p.rows * p.top_k;
    for (int i = threadIdx.x; i < pairs + p.rows; i += consumers * 32) {
      if (i >= smem.route.num_routed && i < pairs) continue;
      const int pair = smem.route.pair_at[i];
      smem.row[i] = static_cast<int16_t>(row_of_pair(pair, pairs, p.top_k));
      smem.factor[i] = (pair < pairs ? p.weights[pair] * p.scaling : 1.0f) * kCellSumsUnit;
    }
    hopper::named_barrier_sync(kDownCellsConsumers, consumers * 32);
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

  // Nobody may be ahead of a slot by a whole turn: all steps before its last one have been there
  // (add_in_turn), and its next one is no turn later than that.
  __device__ __forceinline__ void consume(float* sums) {
    const int steps = smem.route.num_shares * chunks, bytes = slot_bytes();
    const int warps = min(consumers, p.slots * runs);
    const int more_steps = warps / runs, more_runs = warps % runs;  // from one item of a warp to its next
    int step = static_cast<int>(threadIdx.x) / 32 / runs,
        run = static_cast<int>(threadIdx.x) / 32 - step * runs;
    if (static_cast<int>(threadIdx.x) / 32 >= warps) return;
    int slot = step, parity = 0;
    while (step < steps) {
      const int share_of_step = chunks == 1 ? step : step / chunks;
      const FewShare share = smem.route.shares[share_of_step];
      float acc[1][4] = {};
      hopper::mbarrier_wait(full + slot * 8, parity);
      multiply(acc, ring + slot * bytes, run, share.count, cells_of(step - share_of_step * chunks));
      __syncwarp();
      if (threadIdx.x % 32 == 0) hopper::mbarrier_arrive(empty + slot * 8);
      add_in_turn(sums, acc[0], run, step, share);
      if (step + 1 == steps) store(sums, run);
      run += more_runs;
      const int more = more_steps + (run >= runs);
      if (run >= runs) run -= runs;
      step += more, slot += more;
      if (slot >= p.slots) slot -= p.slots, parity ^= 1;
    }
  }
};

template <MatrixFormat kFormat>
__global__ void __launch_bounds__(DownCells::threads(DownCells::kMaxConsumers), 1)
    down_cells_kernel(const __grid_constant__ DownCellsParams p) {
  extern __shared__ __align__(128) uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<DownCells::Smem*>(smem_bytes);
  auto* sums = reinterpret_cast<float*>(smem_bytes + DownCells::kSumsOffset);
  const int runs = min(p.runs, p.hidden / kCellRows - static_cast<int>(blockIdx.x) * p.runs);
  hopper::let_next_kernel_start();
  if (threadIdx.x < p.slots) {
    hopper::mbarrier_init(&smem.full[threadIdx.x], 2);
    hopper::mbarrier_init(&smem.empty[threadIdx.x], runs);
    hopper::mbarrier_init_fence();
  }
  if (threadIdx.x < DownCells::kMaxRuns) smem.added[threadIdx.x] = 0;
  for (int i = threadIdx.x; i < p.rows * DownCells::sum_stride(p.runs); i += blockDim.x) sums[i] = 0;
  // The routing is older than the kernel before, which lets this one start only after it has waited itself.
  route_few(smem.route, p.ids, p.rows, p.num_experts, p.top_k);
  const int chunks = (p.inter / kCellColumns + p.cells - 1) / p.cells;
  DownCellsWork<kFormat> work{p, smem, runs, chunks};
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp == work.consumers) {
    if (threadIdx.x % 32 == 0) work.produce_weights();
  } else if (warp > work.consumers) {
    if (threadIdx.x % 32 == 0) work.produce_tokens();
  } else {
    // While the first weights fly.
    work.load_factors();
    work.consume(sums);
  }
}

}  // namespace sparrow::ops::cuda
