// SPDX-License-Identifier: Apache-2.0
// The experts of few rows in one launch: both products with the activation between them and the weighted sum
// behind them, bound by reading the weights of the experts that were hit once.
//
// Gate and up come in units, 16 weight rows (8 gate, 8 up) of one expert times its rows of x, dealt to the
// CTAs in turn; eight warps multiply with mma.sync, weights in M, each a slice of the columns, and add up
// through shared memory. Hidden rows go through the workspace. Then each CTA owns a slab of the output
// channels and walks through all shares in ascending expert id: tokens in M, eight channels in N for a warp,
// sums of all rows in shared memory, one rounding. The order of all sums is that of stream.cuh and
// down_few.cuh, which take over where rows are more.
//
// One producer warp keeps one ring full from the first weight to the last: those of the second product depend
// on the routing alone and are on their way while the first product drains. Only the hidden rows wait for the
// barrier over the grid. That needs all CTAs on the device at once: the launch asks for no more than fit,
// kernels before this one end by themselves, and one after it starts only when all CTAs of this one have.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/moe/few/experts_few_feed.cuh"
#include "ops/cuda/moe/fragments.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {

struct FewConsumer {
  const ExpertsFewParams& p;
  ExpertsFew::Smem& smem;
  uint32_t base;  // of the ring
  int channels;   // of this CTA's slab
  FewRingReader ring;

  // One line of a piece of gate and up.
  __device__ __forceinline__ void multiply(float (&acc)[4], uint32_t tile, int tokens) {
    using T = ExpertsFew;
    const int warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4;
    const uint32_t weights = tile + (warp * T::kRows + row) * 128;
    // Columns past the last token give sums that nobody takes.
    const uint32_t x = tile + (T::kRows + min(row, tokens - 1)) * T::kRowBytes + warp * 128;
    const Line a0 = load_line(weights), a1 = load_line(weights + 8 * 128), b = load_line(x);
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply_words(acc, a0, a1, b, i);
  }

  __device__ __forceinline__ float unit_sum(int token, int row) const {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < ExpertsFew::kConsumers; ++w) sum += smem.sums.unit[w][token][row];
    return sum;
  }

  // A channel of a token for each thread: everybody waits for these.
  __device__ __forceinline__ void store_hidden(const FewUnit& u) {
    constexpr int kChannels = ExpertsFew::kRows / 2;
    const int token = threadIdx.x / kChannels, channel = threadIdx.x % kChannels;
    if (token >= u.share.count) return;
    const float gate = unit_sum(token, channel), up = unit_sum(token, channel + kChannels);
    p.h[int64_t{u.share.first + token} * p.inter + u.first_row / 2 + channel] =
        __float2bfloat16_rn(swiglu(gate, up, p.alpha, p.limit, p.beta));
  }

  __device__ __forceinline__ void gate_up(int chunks) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int units = smem.route.num_shares * (2 * p.inter / ExpertsFew::kRows);
#pragma unroll 1
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
      const FewUnit u = few_unit(p, smem.route, unit);
      float acc[4] = {};
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk) {
        const uint32_t tile = base + ring.wait();
        if (chunk * ExpertsFew::kDepth + warp * 64 < p.hidden) multiply(acc, tile, u.share.count);
        ring.done();
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) smem.sums.unit[warp][lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] = acc[i];
      hopper::named_barrier_sync(kFewConsumers, ExpertsFew::kConsumers * 32);
      store_hidden(u);
      hopper::named_barrier_sync(kFewConsumers, ExpertsFew::kConsumers * 32);
    }
    if (threadIdx.x == 0) GridBarrier{p.barrier}.arrive();
  }

  __device__ __forceinline__ void multiply_down(float (&acc)[2][4], uint32_t tile, int width, int tokens,
                                                int channel) {
    const int row = threadIdx.x % 32 / 4, row_bytes = p.depth * 2, lines = width / 64;
    // Rows past the last token give sums that nobody takes.
    const uint32_t weights = tile + (channel + row) * row_bytes,
                   h = tile + (p.slab + min(row, tokens - 1)) * row_bytes;
    constexpr int kAtOnce = 3;  // lines whose loads wait together
#pragma unroll 1
    for (int first = 0; first < lines; first += kAtOnce) {
      Line a[kAtOnce], b[kAtOnce];
#pragma unroll
      for (int l = 0; l < kAtOnce; ++l) {
        const int line = min(first + l, lines - 1);
        a[l] = load_line(h + line * 128), b[l] = load_line(weights + line * 128);
      }
#pragma unroll
      for (int l = 0; l < kAtOnce; ++l)
        if (first + l < lines)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            multiply_words(acc[i % 2], a[l], Line{}, b[l], i);  // two chains of sums: half the wait
    }
  }

  // Eight channels of one share at a time for each warp, in turn over shares and channels: a warp takes
  // longer for them than they take to arrive. Only the additions to a row's sums wait for each other.
  __device__ __forceinline__ void down() {
    const int chunks = (p.inter + p.depth - 1) / p.depth, shares = smem.route.num_shares,
              lane = threadIdx.x % 32;
    int turn = threadIdx.x / 32;  // less the channels of all shares so far, in eights
#pragma unroll 1
    for (int share = 0; share < shares; ++share, turn -= p.slab / 8) {
      const int tile = turn & (ExpertsFew::kConsumers - 1), channel = tile * 8;
      const bool works = channel < channels, held = p.holds && share + 1 == shares;
      const FewShare s = smem.route.shares[share];
      const int place = s.first + min(lane / 4, s.count - 1);
      float2* sum = reinterpret_cast<float2*>(&smem.sums.out[smem.row[place]][channel + lane % 4 * 2]);
      const float factor = smem.factor[place];
      float acc[2][4] = {};
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk) {
        uint32_t at = hopper::smem_address(&smem) + ExpertsFew::kHeldOffset;
        if (held)
          hopper::mbarrier_wait(&smem.held, 0);
        else
          at = base + ring.wait();
        if (works) multiply_down(acc, at, min(p.depth, p.inter - chunk * p.depth), s.count, channel);
        if (!held) ring.done();
      }
      if (!works) continue;
      add_in_turn(tile, share, [&] {
        if (lane / 4 >= s.count) return;
        float2 v = *sum;
        v.x += factor * (acc[0][0] + acc[1][0]);
        v.y += factor * (acc[0][1] + acc[1][1]);
        *sum = v;
      });
      if (share + 1 == shares) store_out(channel);
    }
  }

  // After the warp that had the share before for these channels, whichever it was.
  template <typename Add>
  __device__ __forceinline__ void add_in_turn(int tile, int share, const Add& add) {
    volatile int32_t* added = &smem.added[tile];
    while (*added != share) continue;
    __threadfence_block();
    add();
    __threadfence_block();
    __syncwarp();
    if (threadIdx.x % 32 == 0) *added = share + 1;
  }

  // Eight channels of a row for each lane.
  __device__ __forceinline__ void store_out(int channel) {
    const int row = threadIdx.x % 32;
    if (row >= p.rows) return;
    const auto* sum = reinterpret_cast<const float4*>(&smem.sums.out[row][channel]);
    const float4 low = sum[0], high = sum[1];
    const __nv_bfloat162 packed[4] = {
        __floats2bfloat162_rn(low.x, low.y), __floats2bfloat162_rn(low.z, low.w),
        __floats2bfloat162_rn(high.x, high.y), __floats2bfloat162_rn(high.z, high.w)};
    *reinterpret_cast<uint4*>(p.out + int64_t{row} * p.hidden + int64_t{blockIdx.x} * p.slab + channel) =
        *reinterpret_cast<const uint4*>(packed);
  }
};

static __global__ void __launch_bounds__(ExpertsFew::kThreads, ExpertsFew::kCtasPerSm)
    experts_few_kernel(const __grid_constant__ ExpertsFewParams p) {
  extern __shared__ __align__(128) uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<ExpertsFew::Smem*>(smem_bytes);
  uint8_t* base = smem_bytes + p.ring_offset;
  const int channels = min(p.slab, p.hidden - static_cast<int>(blockIdx.x) * p.slab);
  const int chunks = (p.hidden + ExpertsFew::kDepth - 1) / ExpertsFew::kDepth, pairs = p.rows * p.top_k;
  const bool produces = threadIdx.x / 32 == ExpertsFew::kConsumers;
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int s = 0; s < FewRing::kSlots; ++s) {
      hopper::mbarrier_init(&smem.ring.full[s], 1);
      hopper::mbarrier_init(&smem.ring.empty[s], ExpertsFew::kConsumers);
    }
    hopper::mbarrier_init(&smem.held, 1);
#pragma unroll 1
    for (int tile = 0; tile < ExpertsFew::kConsumers; ++tile) smem.added[tile] = 0;
    hopper::mbarrier_init_fence();
  }
  __syncthreads();
  FewProducer producer{p, smem, base, channels, {smem.ring, p.ring_bytes}};
  if (produces) producer.start_early(chunks);
  hopper::wait_for_previous_kernel();
  const uint32_t phase = produces ? GridBarrier{p.barrier}.phase() : 0;
  route_few(smem.route, p.ids, p.rows, p.num_experts, p.top_k);
  if (produces) {
    producer.gate_up(chunks);
    hopper::let_next_kernel_start();
    if (channels > 0) producer.down(phase);
    return;
  }
  for (int i = threadIdx.x; i < pairs + p.rows; i += ExpertsFew::kConsumers * 32) {
    if (i >= smem.route.num_routed && i < pairs) continue;
    const int pair = smem.route.pair_at[i];
    smem.row[i] = static_cast<int16_t>(row_of_pair(pair, pairs, p.top_k));
    smem.factor[i] = pair < pairs ? p.weights[pair] * p.scaling : 1.0f;
  }
  FewConsumer consumer{p, smem, hopper::smem_address(base), channels, {smem.ring}};
  consumer.gate_up(chunks);
  // Not earlier: kernels behind this one would take part of the bandwidth, 2% of a step.
  hopper::let_next_kernel_start();
  for (int i = threadIdx.x; i < p.rows * ExpertsFew::kMaxSlab; i += ExpertsFew::kConsumers * 32)
    smem.sums.out[i / ExpertsFew::kMaxSlab][i % ExpertsFew::kMaxSlab] = 0;
  hopper::named_barrier_sync(kFewConsumers, ExpertsFew::kConsumers * 32);
  if (channels > 0) consumer.down();
}

}  // namespace sparrow::ops::cuda
