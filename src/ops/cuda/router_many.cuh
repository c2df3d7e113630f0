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

#include "msa/sm90/ptx.cuh"
#include "msa/sm90/wgmma.cuh"

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

// An arrival at the barrier of another (or the same) CTA of the cluster. It releases what this thread read,
// and nothing was written: a release to the whole cluster would wait for hundreds of cycles.
__device__ __forceinline__ void arrive_at(uint64_t* bar, uint32_t rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(msa::sm90::cluster_address(bar, rank))
               : "memory");
}

// d[64 x 192] (+)= a[64 x 16] b[16 x 192]; as the products in wgmma.cuh.
__device__ __forceinline__ void wgmma_64x192x16(float (&d)[96], const uint32_t (&a)[4], uint64_t b,
                                                int accumulate) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %101, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
      "}, {%96, %97, %98, %99}, %100, p, 1, 1, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
        "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
        "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),
        "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
        "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]),
        "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]),
        "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]),
        "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
        "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]),
        "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]),
        "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]),
        "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

struct RouterManyShared {
  using Traits = RouterManyTraits;
  char* stages;  // each: x rows, then the experts' rows of the three terms
  uint64_t *full, *empty;

  __device__ explicit RouterManyShared(char* memory) {
    stages = memory + (1024 - msa::sm90::smem_address(memory) % 1024) % 1024;
    full = reinterpret_cast<uint64_t*>(stages + Traits::kStages * Traits::kStageBytes);
    empty = full + Traits::kStages;
  }
  __device__ char* x(int stage) const { return stages + stage * Traits::kStageBytes; }
  __device__ char* router(int stage) const { return x(stage) + Traits::kXBytes; }
};

// One thread: fetches this CTA's rows of x and its share of the router for every stage.
__device__ inline void router_many_produce(const RouterManyParams& p, const RouterManyShared& shared,
                                           int rank, int first_row) {
  using namespace msa::sm90;
  using Traits = RouterManyTraits;
  constexpr uint16_t kAll = (1 << Traits::kCluster) - 1;
  const int steps = p.hidden / Traits::kColumns, first_expert = blockIdx.y * Traits::kExperts;
  for (int step = 0; step < steps; ++step) {
    const int stage = step % Traits::kStages, column = step * Traits::kColumns;
    mbarrier_wait(&shared.empty[stage], (step / Traits::kStages + 1) % 2);
    mbarrier_arrive_expect(&shared.full[stage], Traits::kStageBytes);
    tma_load_2d(shared.x(stage), &p.x, &shared.full[stage], column, first_row);
    for (int term = 0; term < Traits::kTerms; ++term) {
      const int at = rank * Traits::kRouterBox;
      tma_load_2d_multicast(shared.router(stage) + (term * Traits::kExperts + at) * Traits::kRowBytes,
                            &p.parts, &shared.full[stage], column, term * p.num_experts + first_expert + at,
                            kAll);
    }
  }
}

// One warpgroup: 64 rows by 64 experts.
__device__ inline void router_many_consume(const RouterManyParams& p, const RouterManyShared& shared,
                                           int first_row) {
  using namespace msa::sm90;
  using Traits = RouterManyTraits;
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float sum[32] = {}, terms[96];
  const int steps = p.hidden / Traits::kColumns;
  // The lane's row and half of a 16 x 16 tile, as ldmatrix wants it.
  const int x_row = 16 * warp + lane % 16, x_half = lane / 16;
  const int my_turn = group == 0 ? kTurnOfFirst : kTurnOfSecond;
  const int other_turn = group == 0 ? kTurnOfSecond : kTurnOfFirst;
  if (group == 1) named_barrier_arrive(kTurnOfFirst, 128 * Traits::kConsumers);
  for (int step = 0; step < steps; ++step) {
    const int stage = step % Traits::kStages;
    mbarrier_wait(&shared.full[stage], step / Traits::kStages % 2);
    uint32_t a[4][4];
    const uint32_t x = smem_address(shared.x(stage)) + x_row * Traits::kRowBytes;
#pragma unroll
    for (int k = 0; k < 4; ++k) ldmatrix_x4(a[k], x + 16 * ((2 * k + x_half) ^ (x_row % 8)));
    const uint64_t b = wgmma_descriptor(shared.router(stage));
    // In turns: otherwise both would multiply at the same time, and then both do everything else.
    named_barrier_sync(my_turn, 128 * Traits::kConsumers);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)  // a step of 16 columns is 32 bytes, 2 in a descriptor's units
      wgmma_64x192x16(terms, a[k], b + 2 * k, k > 0);
    wgmma_commit();
    if (group == 0 || step + 1 < steps) named_barrier_arrive(other_turn, 128 * Traits::kConsumers);
    wgmma_wait<0>();
    wgmma_pin(terms);
    // Every warp releases the stage at both CTAs, whose copies fill it.
    if (lane < Traits::kCluster) arrive_at(&shared.empty[stage], lane);
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
  using namespace msa::sm90;
  using Traits = RouterManyTraits;
  extern __shared__ char memory[];
  const RouterManyShared shared(memory);
  const int first_row = blockIdx.x * Traits::kRows;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Traits::kStages; ++i) {
      mbarrier_init(&shared.full[i], 1);
      mbarrier_init(&shared.empty[i], Traits::kCluster * Traits::kConsumerWarps);
    }
    mbarrier_init_fence();
  }
  cluster_arrive();  // no copy may reach a CTA whose barriers are not there yet
  cluster_wait();
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (threadIdx.x < 32 * Traits::kConsumerWarps) {
    router_many_consume(p, shared, first_row);
  } else if (elect_one()) {
    router_many_produce(p, shared, blockIdx.x % Traits::kCluster, first_row);
  }
  __syncwarp();
  cluster_arrive();  // nor may a CTA be gone when a release arrives
  cluster_wait();
}

}  // namespace sparrow::ops::cuda
