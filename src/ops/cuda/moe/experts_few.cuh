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

#include "ops/cuda/moe/fragments.cuh"
#include "ops/cuda/moe/ring_few.cuh"
#include "ops/cuda/moe/route_few.cuh"

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
      msa::sm90::tma_load_3d(base + offset, &p.gate_up, &smem.ring.full[slot], 0,
                             u.share.expert * 2 * p.inter + u.first_row, chunk * (T::kDepth / 64),
                             msa::sm90::kEvictFirst);
    return true;
  }
  __device__ __forceinline__ void load_x(const FewUnit& u, int chunk, int piece) {
    using T = ExpertsFew;
    const int slot = piece % FewRing::kSlots, first = chunk * T::kDepth, t = threadIdx.x % 32;
    if (t >= u.share.count) return;
    const int row = row_of_pair(smem.route.pair_at[u.share.first + t], p.rows * p.top_k, p.top_k);
    msa::sm90::bulk_load(base + smem.ring.offset[slot] + (T::kRows + t) * T::kRowBytes,
                         p.x + int64_t{row} * p.hidden + first, min(T::kDepth, p.hidden - first) * 2,
                         &smem.ring.full[slot]);
  }

  // Rows of `width` of `inter` columns; whole rows lie in one piece.
  __device__ __forceinline__ void copy_rows(uint8_t* tile, const __nv_bfloat16* source, int rows,
                                            const FewDown& d, uint64_t* full) {
    const int lane = threadIdx.x % 32;
    if (p.depth == p.inter) {
      if (lane == 0) msa::sm90::bulk_load(tile, source, rows * p.inter * 2, full);
      return;
    }
#pragma unroll 1
    for (int r = lane; r < rows; r += 32)
      msa::sm90::bulk_load(tile + r * p.depth * 2, source + int64_t{r} * p.inter + d.chunk * p.depth,
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
      msa::sm90::prefetch_tensor_map(&p.gate_up);
      if (p.holds && channels > 0) {
        msa::sm90::mbarrier_arrive_expect(&smem.held, (channels + p.rows) * p.inter * 2);
        msa::sm90::bulk_load(held(), slab_of(p.num_experts), channels * p.inter * 2, &smem.held);
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
    fence_async_global();
    if (p.holds && threadIdx.x % 32 == 0)
      msa::sm90::bulk_load(held() + p.slab * p.inter * 2, p.h + int64_t{p.rows} * p.top_k * p.inter,
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

  __device__ __forceinline__ float4 unit_sums(int token, int row) const {
    float4 sum = {};
#pragma unroll
    for (int w = 0; w < ExpertsFew::kConsumers; ++w)
      sum = add(sum, *reinterpret_cast<const float4*>(&smem.sums.unit[w][token][row]));
    return sum;
  }

  // Four channels of a token for each thread.
  __device__ __forceinline__ void store_hidden(const FewUnit& u) {
    const int token = threadIdx.x / 2, channel = threadIdx.x % 2 * 4;
    if (token >= u.share.count) return;
    const float4 gate = unit_sums(token, channel), up = unit_sums(token, channel + 8);
    const __nv_bfloat162 packed[2] = {__floats2bfloat162_rn(swiglu(gate.x, up.x, p.alpha, p.limit, p.beta),
                                                            swiglu(gate.y, up.y, p.alpha, p.limit, p.beta)),
                                      __floats2bfloat162_rn(swiglu(gate.z, up.z, p.alpha, p.limit, p.beta),
                                                            swiglu(gate.w, up.w, p.alpha, p.limit, p.beta))};
    *reinterpret_cast<uint2*>(p.h + int64_t{u.share.first + token} * p.inter + u.first_row / 2 + channel) =
        *reinterpret_cast<const uint2*>(packed);
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
      msa::sm90::named_barrier_sync(kFewConsumers, ExpertsFew::kConsumers * 32);
      store_hidden(u);
      msa::sm90::named_barrier_sync(kFewConsumers, ExpertsFew::kConsumers * 32);
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
        uint32_t at = msa::sm90::smem_address(&smem) + ExpertsFew::kHeldOffset;
        if (held)
          msa::sm90::mbarrier_wait(&smem.held, 0);
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
      msa::sm90::mbarrier_init(&smem.ring.full[s], 1);
      msa::sm90::mbarrier_init(&smem.ring.empty[s], ExpertsFew::kConsumers);
    }
    msa::sm90::mbarrier_init(&smem.held, 1);
#pragma unroll 1
    for (int tile = 0; tile < ExpertsFew::kConsumers; ++tile) smem.added[tile] = 0;
    msa::sm90::mbarrier_init_fence();
  }
  __syncthreads();
  FewProducer producer{p, smem, base, channels, {smem.ring, p.ring_bytes}};
  if (produces) producer.start_early(chunks);
  msa::sm90::wait_for_previous_kernel();
  const uint32_t phase = produces ? GridBarrier{p.barrier}.phase() : 0;
  route_few(smem.route, p.ids, p.rows, p.num_experts, p.top_k);
  if (produces) {
    producer.gate_up(chunks);
    msa::sm90::let_next_kernel_start();
    if (channels > 0) producer.down(phase);
    return;
  }
  for (int i = threadIdx.x; i < pairs + p.rows; i += ExpertsFew::kConsumers * 32) {
    if (i >= smem.route.num_routed && i < pairs) continue;
    const int pair = smem.route.pair_at[i];
    smem.row[i] = static_cast<int16_t>(row_of_pair(pair, pairs, p.top_k));
    smem.factor[i] = pair < pairs ? p.weights[pair] * p.scaling : 1.0f;
  }
  FewConsumer consumer{p, smem, msa::sm90::smem_address(base), channels, {smem.ring}};
  consumer.gate_up(chunks);
  // Not earlier: kernels behind this one would take part of the bandwidth, 2% of a step.
  msa::sm90::let_next_kernel_start();
  for (int i = threadIdx.x; i < p.rows * ExpertsFew::kMaxSlab; i += ExpertsFew::kConsumers * 32)
    smem.sums.out[i / ExpertsFew::kMaxSlab][i % ExpertsFew::kMaxSlab] = 0;
  msa::sm90::named_barrier_sync(kFewConsumers, ExpertsFew::kConsumers * 32);
  if (channels > 0) consumer.down();
}

}  // namespace sparrow::ops::cuda
