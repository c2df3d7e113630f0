// SPDX-License-Identifier: Apache-2.0
// Router logits of many rows: one wgmma product of x with the three bf16 terms of the router matrix.
//
// A CTA makes the logits of 128 rows and 64 experts: a copy warp and two warpgroups of 64 rows, which take
// turns at the tensor cores. Two CTAs with neighbouring rows form a cluster; each fetches half of the
// router's tiles and multicasts it to both, as the L2 could not feed every CTA by itself. The tensor cores
// sum over one stage only, and registers over the stages, because the tensor cores truncate their sums.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "sm90/mma.cuh"
#include "sm90/ptx.cuh"
#include "sm90/wgmma.cuh"

namespace sparrow::ops::cuda {

// Router logits [rows, num_experts] f32 of the maps' x and parts.
struct RouterManyParams {
  CUtensorMap x;      // [rows, hidden], boxes of kRows x 64 columns
  CUtensorMap parts;  // [3 * num_experts, hidden], boxes of kRouterBox x 64 columns
  float* logits;
  int rows, num_experts, hidden;
};

struct RouterManyTraits {
  static constexpr int kRows = 128, kExperts = 64, kTerms = 3, kColumns = 64, kStages = 5;
  static constexpr int kCluster = 2;
  static constexpr int kConsumers = 2, kConsumerWarps = 4 * kConsumers;
  static constexpr int kThreads = 32 * (kConsumerWarps + 1);
  static constexpr int kRowBytes = kColumns * 2;  // of a tile: the width of the swizzle
  static constexpr int kXBytes = kRows * kRowBytes, kRouterBytes = kTerms * kExperts * kRowBytes;
  static constexpr int kStageBytes = kXBytes + kRouterBytes;
  static constexpr int kRouterBox = kExperts / kCluster;
  static constexpr int kSmemBytes = kStages * kStageBytes + 1024 + 2 * kStages * 8;
  static_assert(kSmemBytes <= 227 * 1024);
};

enum RouterManyBarrier { kTurnOfFirst = 1, kTurnOfSecond = 2 };

struct RouterManyShared {
  using Traits = RouterManyTraits;
  char* stages;  // each: x rows, then the experts' rows of the three terms
  uint64_t *full, *empty;

  __device__ explicit RouterManyShared(char* memory) {
    stages = memory + (1024 - hopper::smem_address(memory) % 1024) % 1024;
    full = reinterpret_cast<uint64_t*>(stages + Traits::kStages * Traits::kStageBytes);
    empty = full + Traits::kStages;
  }
  __device__ char* x(int stage) const { return stages + stage * Traits::kStageBytes; }
  __device__ char* router(int stage) const { return x(stage) + Traits::kXBytes; }
};

// One thread: fetches this CTA's rows of x and its share of the router for every stage.
__device__ inline void router_many_produce(const RouterManyParams& p, const RouterManyShared& shared,
                                           int rank, int first_row) {
  using Traits = RouterManyTraits;
  constexpr uint16_t kAll = (1 << Traits::kCluster) - 1;
  const int steps = p.hidden / Traits::kColumns, first_expert = blockIdx.y * Traits::kExperts;
  for (int step = 0; step < steps; ++step) {
    const int stage = step % Traits::kStages, column = step * Traits::kColumns;
    hopper::mbarrier_wait(&shared.empty[stage], (step / Traits::kStages + 1) % 2);
    hopper::mbarrier_arrive_expect(&shared.full[stage], Traits::kStageBytes);
    hopper::tma_load_2d(shared.x(stage), &p.x, &shared.full[stage], column, first_row);
    for (int term = 0; term < Traits::kTerms; ++term) {
      const int at = rank * Traits::kRouterBox;
      hopper::tma_load_2d_multicast(shared.router(stage) + (term * Traits::kExperts + at) * Traits::kRowBytes,
                                    &p.parts, &shared.full[stage], column,
                                    term * p.num_experts + first_expert + at, kAll);
    }
  }
}

// One warpgroup: 64 rows by 64 experts.
__device__ inline void router_many_consume(const RouterManyParams& p, const RouterManyShared& shared,
                                           int first_row) {
  using Traits = RouterManyTraits;
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float sum[32] = {}, terms[96];
  const int steps = p.hidden / Traits::kColumns;
  // The lane's row and half of a 16 x 16 tile, as ldmatrix wants it.
  const int x_row = 16 * warp + lane % 16, x_half = lane / 16;
  const int my_turn = group == 0 ? kTurnOfFirst : kTurnOfSecond;
  const int other_turn = group == 0 ? kTurnOfSecond : kTurnOfFirst;
  if (group == 1) hopper::named_barrier_arrive(kTurnOfFirst, 128 * Traits::kConsumers);
  for (int step = 0; step < steps; ++step) {
    const int stage = step % Traits::kStages;
    hopper::mbarrier_wait(&shared.full[stage], step / Traits::kStages % 2);
    uint32_t a[4][4];
    const uint32_t x = hopper::smem_address(shared.x(stage)) + x_row * Traits::kRowBytes;
#pragma unroll
    for (int k = 0; k < 4; ++k) hopper::ldmatrix_x4(a[k], x + 16 * ((2 * k + x_half) ^ (x_row % 8)));
    const uint64_t b = hopper::wgmma_descriptor(shared.router(stage));
    // In turns: otherwise both would multiply at the same time, and then both do everything else.
    hopper::named_barrier_sync(my_turn, 128 * Traits::kConsumers);
    hopper::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)  // a step of 16 columns is 32 bytes, 2 in a descriptor's units
      hopper::wgmma<192>(terms, a[k], b + 2 * k, k > 0);
    hopper::wgmma_commit();
    if (group == 0 || step + 1 < steps) hopper::named_barrier_arrive(other_turn, 128 * Traits::kConsumers);
    hopper::wgmma_wait<0>();
    hopper::wgmma_pin(terms);
    // Every warp releases the stage at both CTAs, whose copies fill it.
    if (lane < Traits::kCluster) hopper::mbarrier_arrive_at(&shared.empty[stage], lane);
#pragma unroll
    for (int i = 0; i < 32; ++i) sum[i] += terms[i] + (terms[i + 32] + terms[i + 64]);
  }
#pragma unroll
  for (int j = 0; j < 8; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + 64 * group + 16 * (warp % 4) + lane / 4 + 8 * h;
      const int expert = blockIdx.y * Traits::kExperts + 8 * j + 2 * (lane % 4), i = 4 * j + 2 * h;
      if (row >= p.rows) continue;
      float* const out = p.logits + int64_t{row} * p.num_experts + expert;
      if (expert < p.num_experts) out[0] = sum[i];
      if (expert + 1 < p.num_experts) out[1] = sum[i + 1];
    }
}

static __global__ void __cluster_dims__(RouterManyTraits::kCluster, 1, 1)
    __launch_bounds__(RouterManyTraits::kThreads, 1)
        router_many_kernel(const __grid_constant__ RouterManyParams p) {
  using Traits = RouterManyTraits;
  extern __shared__ char memory[];
  const RouterManyShared shared(memory);
  const int first_row = blockIdx.x * Traits::kRows;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Traits::kStages; ++i) {
      hopper::mbarrier_init(&shared.full[i], 1);
      hopper::mbarrier_init(&shared.empty[i], Traits::kCluster * Traits::kConsumerWarps);
    }
    hopper::mbarrier_init_fence();
  }
  hopper::cluster_arrive();  // no copy may reach a CTA whose barriers are not there yet
  hopper::cluster_wait();
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();
  if (threadIdx.x < 32 * Traits::kConsumerWarps) {
    router_many_consume(p, shared, first_row);
  } else if (hopper::elect_one()) {
    router_many_produce(p, shared, blockIdx.x % Traits::kCluster, first_row);
  }
  __syncwarp();
  hopper::cluster_arrive();  // nor may a CTA be gone when a release arrives
  hopper::cluster_wait();
}

}  // namespace sparrow::ops::cuda
