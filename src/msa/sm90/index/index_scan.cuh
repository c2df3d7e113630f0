// SPDX-License-Identifier: Apache-2.0
// Index scan: block scores for requests of few rows (decode, verify, short extends), bound by reading the
// index keys.
//
// All requests' keys form one line of units (32 bf16 keys or 64 fp8 keys: 8 KiB). A short line is dealt out
// in advance; of a long line warps draw runs of units by tickets, because SMs do not get equal shares of the
// memory's bandwidth. Each warp owns a private ring of shared memory that it fills through the copy engine
// and drains through mma.sync with keys in M, so warps never wait for each other. The grid does not depend on
// the lengths, which are read on the device.
#pragma once

#include "msa/sm90/index/index_key.cuh"
#include "sm90/convert.cuh"
#include "sm90/mma.cuh"
#include "sm90/ptx.cuh"
#include "sm90/tensor_map.h"

namespace msa::sm90 {

template <int kMaxRows, hopper::Element kKeyType, bool kOfShare = false>
struct IndexScanTraits {
  static constexpr bool kShare = kOfShare;  // scans what IndexScanParams::share lists
  // The step's own keys, of at most kMaxScanRows queries, lie in the last two blocks of a request, and so in
  // the last two of a share at most.
  static constexpr int kNewBlocks = 2;
  static_assert(kMaxScanRows <= kBlock);
  static constexpr int kRows = kMaxRows;
  static constexpr int kRowTiles = kRows / 8;
  static constexpr bool kFp8 = kKeyType == hopper::Element::kE4M3;
  static constexpr int kUnitKeys = kFp8 ? 64 : 32;
  static constexpr int kUnitsPerBlock = kBlock / kUnitKeys;
  static constexpr int kKeyTiles = kUnitKeys / 16;
  static constexpr int kLinesPerKey = kFp8 ? 1 : 2;  // of 128 bytes, the width of the swizzle
  static constexpr int kUnitBytes = 8192;
  // Widening is a chain of arithmetic, so fp8 wants more warps; 32 rows have no registers for them.
  static constexpr int kWarps = kFp8 && kRows <= 16 ? 12 : 8, kThreads = kWarps * 32;
  static constexpr int kStages = 24 / kWarps;  // 192 KiB in flight
  static_assert(kUnitKeys * kHeadDim * hopper::element_bytes(kKeyType) == kUnitBytes);
  static_assert(kUnitsPerBlock <= kMaxUnitsPerBlock && kRows % 8 == 0 && kRows <= kMaxScanRows);

  // Ahead of the ring, whose stages follow one another so that a launch may have fewer: 1 is enough where no
  // warp has more than one unit.
  struct Smem {
    uint64_t full[kWarps][kStages];
    int32_t unit[kWarps][kStages];  // what each stage holds
    int32_t warp_total[kWarps];
    // [num_requests + 1] units before each request
    __device__ int32_t* prefix() { return reinterpret_cast<int32_t*>(this + 1); }
  };
  static constexpr __host__ __device__ int ring_offset(int num_requests) {
    return (static_cast<int>(sizeof(Smem)) + 4 * (num_requests + 1) + 1023) / 1024 * 1024;
  }
  static constexpr int smem_bytes(int num_requests, int stages) {
    return ring_offset(num_requests) + stages * kWarps * kUnitBytes;
  }
};

// Query fragments of one request in registers, as B operands: [k step][row tile][2].
template <typename T>
struct ScanQueries {
  uint32_t b[8][T::kRowTiles][2];

  __device__ __forceinline__ void load(const uint16_t* q, int rows) {
    const int lane = threadIdx.x % 32, row_in_tile = lane / 4, c = lane % 4;
#pragma unroll
    for (int tile = 0; tile < T::kRowTiles; ++tile) {
      const int row = tile * 8 + row_in_tile;
      const uint16_t* source = q + int64_t{row} * kHeadDim;
#pragma unroll
      for (int step = 0; step < 8; ++step) {
        // fp8 keys come as 4 neighbouring channels for each lane; the 16 channels of a step stay together
        // either way.
        const int first = step * 16 + (T::kFp8 ? c * 4 : c * 2);
        b[step][tile][0] = row < rows ? *reinterpret_cast<const uint32_t*>(source + first) : 0;
        b[step][tile][1] =
            row < rows ? *reinterpret_cast<const uint32_t*>(source + first + (T::kFp8 ? 2 : 8)) : 0;
      }
    }
  }
};

// scores of one unit: acc[key tile][row tile] in the layout of mma.sync.
template <typename T>
__device__ __forceinline__ void scan_products(float (&acc)[T::kKeyTiles][T::kRowTiles][4],
                                              const ScanQueries<T>& queries, uint32_t unit) {
  const int lane = threadIdx.x % 32, row = lane % 16, chunk_half = lane / 16;
#pragma unroll
  for (int key_tile = 0; key_tile < T::kKeyTiles; ++key_tile)
#pragma unroll
    for (int tile = 0; tile < T::kRowTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[key_tile][tile][i] = 0;
  const auto multiply = [&](int key_tile, int step, const uint32_t(&a)[4]) {
#pragma unroll
    for (int tile = 0; tile < T::kRowTiles; ++tile)
      hopper::mma_16x8x16(acc[key_tile][tile], a, queries.b[step][tile][0], queries.b[step][tile][1]);
  };
  // Steps outside, key tiles inside: neighbouring products do not wait for each other's sums.
  if constexpr (!T::kFp8) {
#pragma unroll
    for (int step = 0; step < 8; ++step)
#pragma unroll
      for (int key_tile = 0; key_tile < T::kKeyTiles; ++key_tile) {
        // A key is two lines, so that a unit is one contiguous copy; the 8 rows of a matrix meet in pairs on
        // a bank.
        const int line = (key_tile * 16 + row) * 2 + step / 4, chunk = (step % 4) * 2 + chunk_half;
        uint32_t a[4];
        hopper::ldmatrix_x4(a, unit + line * 128 + ((chunk ^ (line % 8)) << 4));
        multiply(key_tile, step, a);
      }
  } else {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair)
#pragma unroll
      for (int key_tile = 0; key_tile < T::kKeyTiles; ++key_tile) {
        const int line = key_tile * 16 + row, chunk = pair * 2 + chunk_half;
        uint32_t bytes[4];
        hopper::ldmatrix_x4(bytes, unit + line * 128 + ((chunk ^ (line % 8)) << 4));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t a[4];
          hopper::widen_e4m3(bytes[half * 2], a[0], a[2]);
          hopper::widen_e4m3(bytes[half * 2 + 1], a[1], a[3]);
          multiply(key_tile, pair * 2 + half, a);
        }
      }
  }
}

// Hides the keys behind each row's position. Only the last units of a request come here.
template <typename T>
__device__ __forceinline__ void scan_mask(float (&acc)[T::kKeyTiles][T::kRowTiles][4], int first_key,
                                          int first_position, int heads) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int tile = 0; tile < T::kRowTiles; ++tile)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int position = first_position + (tile * 8 + (lane % 4) * 2 + e) / heads;
#pragma unroll
      for (int key_tile = 0; key_tile < T::kKeyTiles; ++key_tile)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          if (first_key + key_tile * 16 + lane / 4 + h * 8 > position)
            acc[key_tile][tile][h * 2 + e] = kLowest;
    }
}

// Largest score of the unit for each row, to memory.
template <typename T>
__device__ __forceinline__ void scan_store(const float (&acc)[T::kKeyTiles][T::kRowTiles][4], float* out,
                                           int64_t stride, int rows) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int tile = 0; tile < T::kRowTiles; ++tile)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float best = kLowest;
#pragma unroll
      for (int key_tile = 0; key_tile < T::kKeyTiles; ++key_tile)
        best = fmaxf(best, fmaxf(acc[key_tile][tile][e], acc[key_tile][tile][2 + e]));
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2)
        best = fmaxf(best, __shfl_xor_sync(kFullWarp, best, distance));
      const int row = tile * 8 + (lane % 4) * 2 + e;
      if (lane / 4 == tile && row < rows) out[row * stride] = best;
    }
}

// The position of a unit's first key in the request, for a share; 0 of blocks that every row sees whole.
template <typename T>
__device__ __forceinline__ int first_key_of(const IndexShareList& share, const IndexBatch& b, int request,
                                            int unit, int first_new) {
  const int block = unit / T::kUnitsPerBlock;
  if (block < first_new) return 0;
  return share.blocks[int64_t{request} * b.max_blocks + block] * kBlock +
         unit % T::kUnitsPerBlock * T::kUnitKeys;
}

// prefix[r] = units of all requests before r. Block-wide; ends with a barrier.
template <typename T>
__device__ __forceinline__ void scan_prefix(const IndexScanParams& p, typename T::Smem& smem) {
  const IndexBatch& b = p.batch;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  int carry = 0;
  for (int base = 0; base < b.num_requests; base += T::kThreads) {
    const int request = base + thread;
    int units = 0;
    if (request < b.num_requests) {
      const RequestRows r = request_rows(b, request);
      if (r.rows > 0 && r.seq_len > p.top_k * kBlock) {
        const int blocks = (r.seq_len - 1) / kBlock + (p.without_own ? 0 : 1);
        if constexpr (T::kShare) {
          units = listed_before(p.share, b, request, blocks) * T::kUnitsPerBlock;
        } else {
          units = blocks * T::kUnitsPerBlock;
        }
      }
    }
    int sum = units;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int below = __shfl_up_sync(kFullWarp, sum, distance);
      if (lane >= distance) sum += below;
    }
    if (lane == 31) smem.warp_total[warp] = sum;
    __syncthreads();
    int before = carry, total = carry;
#pragma unroll
    for (int w = 0; w < T::kWarps; ++w) {
      if (w < warp) before += smem.warp_total[w];
      total += smem.warp_total[w];
    }
    if (request < b.num_requests) smem.prefix()[request] = before + sum - units;
    carry = total;
    __syncthreads();
  }
  if (thread == 0) smem.prefix()[b.num_requests] = carry;
  __syncthreads();
}

// A warp's units in ascending order, `end` after the last. Few units are dealt out in advance: one for each
// warp of the first CTAs, or a contiguous share for each CTA. The last CTAs may start late, on SMs that the
// kernel before still holds: they get less. Of a long line warps draw runs by tickets.
template <typename T>
struct ScanDeal {
  static constexpr int kTicket = 4;  // units drawn at once; so many for each warp are worth drawing
  static_assert(T::kStages <= kTicket);
  uint32_t* counter;        // nullptr: dealt in advance
  int unit, end, step = 1;  // step: from one unit to the next
  int left = 0;             // units of the run in hand
  uint32_t drawn = 0;       // lane 0: the next ticket

  __device__ __forceinline__ ScanDeal(uint32_t* tickets, int total) : counter(tickets), end(total) {
    const int warp = threadIdx.x / 32, workers = gridDim.x * T::kWarps;
    if (total > workers * kTicket) {
      unit = (warp * gridDim.x + blockIdx.x) * kTicket;
      left = kTicket;
      return;
    }
    counter = nullptr;
    const int begin = total > workers ? share_begin(blockIdx.x, total) : blockIdx.x * T::kWarps;
    if (total > workers) end = share_begin(blockIdx.x + 1, total);
    unit = begin + warp;
    step = total > workers ? T::kWarps : total;
  }

  // The last eighth of the CTAs has three quarters of a share each.
  __device__ static int share_begin(int cta, int total) {
    const int ctas = gridDim.x, late = ctas / 8;
    const auto quarters = [&](int c) { return 4 * c - max(c - (ctas - late), 0); };
    return static_cast<int>(int64_t{total} * quarters(cta) / quarters(ctas));
  }

  // Asks for the first ticket, after the kernel before.
  __device__ __forceinline__ void start() {
    if (counter != nullptr && unit < end) draw();
  }

  __device__ __forceinline__ void draw() {
    if (threadIdx.x % 32 == 0) drawn = atomicAdd(counter, 1u);
  }

  __device__ __forceinline__ void advance() {
    if (counter == nullptr) {
      unit += step;
    } else if (--left > 0) {
      ++unit;
    } else if (unit < end) {
      const int workers = gridDim.x * T::kWarps;
      unit = (workers + static_cast<int>(__shfl_sync(kFullWarp, drawn, 0))) * kTicket;
      left = kTicket;
      if (unit < end) draw();
    }
  }
};

template <typename T>
__global__ void __launch_bounds__(T::kThreads, 1)
    index_scan_kernel(const __grid_constant__ IndexScanParams p, const __grid_constant__ CUtensorMap keys) {
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& smem = *reinterpret_cast<typename T::Smem*>(raw);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const IndexBatch& b = p.batch;
  const auto place_of = [&](int stage) {
    return raw + T::ring_offset(b.num_requests) + (stage * T::kWarps + warp) * T::kUnitBytes;
  };
  hopper::let_next_kernel_start();
  if (lane < T::kStages) hopper::mbarrier_init(&smem.full[warp][lane], 1);
  hopper::mbarrier_init_fence();
  if (threadIdx.x == 0) hopper::prefetch_tensor_map(&keys);
  scan_prefix<T>(p, smem);  // the step's metadata is older than the kernel before

  ScanDeal<T> ahead(p.counter, smem.prefix()[b.num_requests]);
  const int end = ahead.end;
  int ahead_request = 0;
  // The page of the unit `ahead`, as read: a fetch needs it, and using it at once would wait for memory.
  struct Place {
    int unit, page, unit_in_page;
  };
  const auto place_ahead = [&]() -> Place {
    if (ahead.unit >= end) return {end, 0, 0};
    while (smem.prefix()[ahead_request + 1] <= ahead.unit) ++ahead_request;
    const int unit = ahead.unit - smem.prefix()[ahead_request];
    return {ahead.unit, b.block_table[int64_t{ahead_request} * b.max_blocks + unit / T::kUnitsPerBlock],
            unit % T::kUnitsPerBlock};
  };
  const auto fetch = [&](const Place& place, int stage) {
    if (lane != 0) return;
    smem.unit[warp][stage] = place.unit;
    if (place.unit >= end) return;
    const int key = place.page * kBlock + place.unit_in_page * T::kUnitKeys;
    hopper::mbarrier_arrive_expect(&smem.full[warp][stage], T::kUnitBytes);
    hopper::tma_load_2d(place_of(stage), &keys, &smem.full[warp][stage], 0, key * T::kLinesPerKey,
                        hopper::kEvictFirst);
  };
  Place first[T::kStages];
#pragma unroll
  for (int i = 0; i < T::kStages; ++i) {
    if (i > 0) ahead.advance();
    first[i] = place_ahead();
  }
  int request = 0;
  RequestRows rows{};
  [[maybe_unused]] int first_new = 0;  // of a share: the first block in its list that may have new keys
  const auto look_up_request = [&] {
    rows = request_rows(b, request);
    if constexpr (T::kShare) first_new = p.share.counts[request] - T::kNewBlocks;
  };
  // Whether the unit is another request's than the last one's.
  const auto moves_on = [&](int unit) {
    const int last = request;
    while (smem.prefix()[request + 1] <= unit) ++request;
    return request != last;
  };
  if (first[0].unit < end) {
    moves_on(first[0].unit);
    look_up_request();
  }
  // The first unit is fetched before the kernel before is over, unless it has keys of this step, which that
  // one may write. More, or on a long line, would take bandwidth that the kernel before still needs.
  const auto is_old = [&](int unit) {
    if constexpr (T::kShare) return (unit - smem.prefix()[request]) / T::kUnitsPerBlock < first_new;
    return (unit + 1 - smem.prefix()[request]) * T::kUnitKeys <= rows.first_position;
  };
  const bool early = ahead.counter == nullptr && first[0].unit < end && is_old(first[0].unit);
  if (early) fetch(first[0], 0);
  hopper::wait_for_previous_kernel();
#pragma unroll
  for (int i = 0; i < T::kStages; ++i)
    if (i > 0 || !early) fetch(first[i], i);
  ahead.start();
  __syncwarp();

  ScanQueries<T> queries;
  const auto load_queries = [&] { queries.load(p.q + int64_t{rows.first_row} * kHeadDim, rows.rows); };
  load_queries();  // none without a unit; on their way while the first ticket is
  int stage = 0;
  ahead.advance();
  Place next = place_ahead();  // read one unit before its fetch
  uint32_t parity = 0;
  const int64_t stride = int64_t{b.max_blocks} * T::kUnitsPerBlock;
  for (int here; (here = smem.unit[warp][stage]) < end;) {
    if (moves_on(here)) {
      look_up_request();
      load_queries();
    }
    hopper::mbarrier_wait(&smem.full[warp][stage], parity);
    float acc[T::kKeyTiles][T::kRowTiles][4];
    scan_products<T>(acc, queries, hopper::smem_address(place_of(stage)));
    __syncwarp();
    fetch(next, stage);
    ahead.advance();
    next = place_ahead();
    const int in_request = here - smem.prefix()[request];
    int first_key = in_request * T::kUnitKeys;
    if constexpr (T::kShare) first_key = first_key_of<T>(p.share, b, request, in_request, first_new);
    if (first_key + T::kUnitKeys - 1 > rows.first_position)
      scan_mask<T>(acc, first_key, rows.first_position, b.heads);
    scan_store<T>(acc, p.scores + int64_t{rows.first_row} * stride + in_request, stride, rows.rows);
    if (++stage == T::kStages) stage = 0, parity ^= 1;
    __syncwarp();
  }
}

}  // namespace msa::sm90
