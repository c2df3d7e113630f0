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
#include "msa/sm90/widen.cuh"

namespace msa::sm90 {

template <int kMaxRows, Element kKeyType>
struct IndexScanTraits {
  static constexpr int kRows = kMaxRows;
  static constexpr int kRowTiles = kRows / 8;
  static constexpr bool kFp8 = kKeyType == Element::kE4M3;
  static constexpr int kUnitKeys = kFp8 ? 64 : 32;
  static constexpr int kUnitsPerBlock = kBlock / kUnitKeys;
  static constexpr int kKeyTiles = kUnitKeys / 16;
  static constexpr int kLinesPerKey = kFp8 ? 1 : 2;  // of 128 bytes, the width of the swizzle
  static constexpr int kUnitBytes = 8192;
  // Widening is a chain of arithmetic, so fp8 wants more warps; 32 rows have no registers for them.
  static constexpr int kWarps = kFp8 && kRows <= 16 ? 12 : 8, kThreads = kWarps * 32;
  static constexpr int kStages = 24 / kWarps;  // 192 KiB in flight
  static_assert(kUnitKeys * kHeadDim * element_bytes(kKeyType) == kUnitBytes);
  static_assert(kUnitsPerBlock <= kMaxUnitsPerBlock && kRows % 8 == 0 && kRows <= kMaxScanRows);

  struct Smem {
    uint8_t ring[kWarps][kStages][kUnitBytes];
    uint64_t full[kWarps][kStages];
    int32_t prefix[kMaxIndexRequests + 1];  // units before each request
    int32_t unit[kWarps][kStages];          // what each stage holds
    int32_t warp_total[kWarps];
  };
  static constexpr int kSmemBytes = sizeof(Smem);
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
      mma_16x8x16(acc[key_tile][tile], a, queries.b[step][tile][0], queries.b[step][tile][1]);
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
        ldmatrix_x4(a, unit + line * 128 + ((chunk ^ (line % 8)) << 4));
        multiply(key_tile, step, a);
      }
  } else {
#pragma unroll
    for (int pair = 0; pair < 4; ++pair)
#pragma unroll
      for (int key_tile = 0; key_tile < T::kKeyTiles; ++key_tile) {
        const int line = key_tile * 16 + row, chunk = pair * 2 + chunk_half;
        uint32_t bytes[4];
        ldmatrix_x4(bytes, unit + line * 128 + ((chunk ^ (line % 8)) << 4));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t a[4];
          widen_e4m3(bytes[half * 2], a[0], a[2]);
          widen_e4m3(bytes[half * 2 + 1], a[1], a[3]);
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

// prefix[r] = units of all requests before r. Block-wide; ends with a barrier.
template <typename T>
__device__ __forceinline__ void scan_prefix(const IndexBatch& b, typename T::Smem& smem) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  int carry = 0;
  for (int base = 0; base < b.num_requests; base += T::kThreads) {
    const int request = base + thread;
    int units = 0;
    if (request < b.num_requests) {
      const RequestRows r = request_rows(b, request);
      if (r.rows > 0) units = (r.seq_len + T::kUnitKeys - 1) / T::kUnitKeys;
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
    if (request < b.num_requests) smem.prefix[request] = before + sum - units;
    carry = total;
    __syncthreads();
  }
  if (thread == 0) smem.prefix[b.num_requests] = carry;
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
  let_next_kernel_start();
  if (lane < T::kStages) mbarrier_init(&smem.full[warp][lane], 1);
  mbarrier_init_fence();
  if (threadIdx.x == 0) prefetch_tensor_map(&keys);
  scan_prefix<T>(b, smem);  // the step's metadata is older than the kernel before

  ScanDeal<T> ahead(p.counter, smem.prefix[b.num_requests]);
  const int end = ahead.end;
  int ahead_request = 0;
  // The page of the unit `ahead`, as read: a fetch needs it, and using it at once would wait for memory.
  struct Place {
    int unit, page, unit_in_page;
  };
  const auto place_ahead = [&]() -> Place {
    if (ahead.unit >= end) return {end, 0, 0};
    while (smem.prefix[ahead_request + 1] <= ahead.unit) ++ahead_request;
    const int unit = ahead.unit - smem.prefix[ahead_request];
    return {ahead.unit, b.block_table[int64_t{ahead_request} * b.max_blocks + unit / T::kUnitsPerBlock],
            unit % T::kUnitsPerBlock};
  };
  const auto fetch = [&](const Place& place, int stage) {
    if (lane != 0) return;
    smem.unit[warp][stage] = place.unit;
    if (place.unit >= end) return;
    const int key = place.page * kBlock + place.unit_in_page * T::kUnitKeys;
    mbarrier_arrive_expect(&smem.full[warp][stage], T::kUnitBytes);
    tma_load_2d(smem.ring[warp][stage], &keys, &smem.full[warp][stage], 0, key * T::kLinesPerKey,
                kEvictFirst);
  };
  // The first unit is fetched before the kernel before is over, unless it has keys of this step, which that
  // one may write. More, or on a long line, would take bandwidth that the kernel before still needs.
  Place first[T::kStages];
  bool early = false;
#pragma unroll
  for (int i = 0; i < T::kStages; ++i) {
    if (i > 0) ahead.advance();
    first[i] = place_ahead();
    if (i == 0 && ahead.counter == nullptr && ahead.unit < end)
      early = (ahead.unit + 1 - smem.prefix[ahead_request]) * T::kUnitKeys <=
              request_rows(b, ahead_request).first_position;
  }
  if (early) fetch(first[0], 0);
  wait_for_previous_kernel();
#pragma unroll
  for (int i = 0; i < T::kStages; ++i)
    if (i > 0 || !early) fetch(first[i], i);
  ahead.start();
  __syncwarp();

  ScanQueries<T> queries;
  RequestRows rows{};
  int request = -1, search = 0, stage = 0;
  const auto look_up = [&](int unit) {
    while (smem.prefix[search + 1] <= unit) ++search;
    if (search == request) return;
    request = search;
    rows = request_rows(b, request);
    queries.load(p.q + int64_t{rows.first_row} * kHeadDim, rows.rows);
  };
  if (first[0].unit < end) look_up(first[0].unit);  // on its way while the first ticket is
  ahead.advance();
  Place next = place_ahead();  // read one unit before its fetch
  uint32_t parity = 0;
  const int64_t stride = int64_t{b.max_blocks} * T::kUnitsPerBlock;
  for (int here; (here = smem.unit[warp][stage]) < end;) {
    look_up(here);
    mbarrier_wait(&smem.full[warp][stage], parity);
    float acc[T::kKeyTiles][T::kRowTiles][4];
    scan_products<T>(acc, queries, smem_address(smem.ring[warp][stage]));
    __syncwarp();
    fetch(next, stage);
    ahead.advance();
    next = place_ahead();
    const int in_request = here - smem.prefix[request], first_key = in_request * T::kUnitKeys;
    if (first_key + T::kUnitKeys - 1 > rows.first_position)
      scan_mask<T>(acc, first_key, rows.first_position, b.heads);
    scan_store<T>(acc, p.scores + int64_t{rows.first_row} * stride + in_request, stride, rows.rows);
    if (++stage == T::kStages) stage = 0, parity ^= 1;
    __syncwarp();
  }
}

// ---- select ----

template <int kUnits, int kNumWarps, int kBlocksPerThread>
struct IndexSelectTraits {
  static constexpr int kUnitsPerBlock = kUnits;
  static constexpr int kWarps = kNumWarps, kThreads = kWarps * 32, kPerThread = kBlocksPerThread;
  static constexpr int kRound = kThreads * kPerThread;  // blocks
  static_assert(kUnits == 1 || kUnits == 2 || kUnits == 4, "a block's unit scores are one vector");
};

// The score of a block: units that begin after `position` were not written.
template <int kUnits>
__device__ __forceinline__ float block_score(const float* scores, int block, int position) {
  float units[kUnits];
  if constexpr (kUnits == 4) {
    const float4 v = reinterpret_cast<const float4*>(scores)[block];
    units[0] = v.x, units[1] = v.y, units[2] = v.z, units[3] = v.w;
  } else if constexpr (kUnits == 2) {
    const float2 v = reinterpret_cast<const float2*>(scores)[block];
    units[0] = v.x, units[1] = v.y;
  } else {
    units[0] = scores[block];
  }
  float best = kLowest;
#pragma unroll
  for (int i = 0; i < kUnits; ++i)
    if (block * kBlock + i * (kBlock / kUnits) <= position) best = fmaxf(best, units[i]);
  return best;
}

// One CTA per row, which takes all its blocks at once, or in rounds that hand on the best so far.
template <typename T>
__global__ void __launch_bounds__(T::kThreads, 1)
    index_select_kernel(const __grid_constant__ IndexSelectParams p) {
  __shared__ CtaKeyScratch<T::kWarps> scratch;
  const int row = blockIdx.x;
  const IndexBatch& b = p.batch;
  const int request = request_of_row(b, row);
  const RequestRows rows = request >= 0 ? request_rows(b, request) : RequestRows{};
  const int position = rows.first_position + (row - rows.first_row) / b.heads;
  const int own = position / kBlock, blocks = rows.rows > 0 ? own + 1 : 0;
  const float* scores = p.scores + int64_t{row} * b.max_blocks * T::kUnitsPerBlock;
  // The CTAs of many rows' attention would pile up on the SMs that the scan leaves first.
  constexpr int kFewRows = 4;
  const bool few = gridDim.x <= kFewRows;
  if (few) let_next_kernel_start();
  wait_for_previous_kernel();  // the metadata above is older than the kernel before
  if (!few) let_next_kernel_start();
  if (row == 0 && threadIdx.x == 0 && p.counter != nullptr) *p.counter = 0;  // for the next scan
  uint64_t top = 0;
  for (int base = 0; base < blocks; base += T::kRound) {
    if (base > 0) __syncthreads();
    float best[T::kPerThread];
#pragma unroll
    for (int i = 0; i < T::kPerThread; ++i) {
      const int block = base + i * T::kThreads + threadIdx.x;
      best[i] = block < blocks ? block_score<T::kUnitsPerBlock>(scores, block, position) : kLowest;
    }
    uint64_t keys[T::kPerThread + 1];
#pragma unroll
    for (int i = 0; i < T::kPerThread; ++i) {
      const int block = base + i * T::kThreads + threadIdx.x;
      keys[i] = block < blocks ? make_key(best[i], block, own, p.selection) : 0;
    }
    keys[T::kPerThread] = top;
    top = cta_largest(keys, scratch);
  }
  if (threadIdx.x < 32)
    store_selection(top, p.selection.top_k, p.selected + int64_t{row} * p.selection.top_k);
}

}  // namespace msa::sm90
