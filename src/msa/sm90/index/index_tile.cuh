// SPDX-License-Identifier: Apache-2.0
// Index tile: block scores and running top-16 for requests of many rows (prefill, chunks), bound by the
// tensor cores.
//
// Rows in M: a CTA holds 128 or 256 rows of q as A fragments in registers for a whole piece and streams key
// blocks through shared memory. Two consumer warpgroups each keep one product running while they take the
// maximum of the one before. The row's maximum is the block's score; each thread owns one row, compares it
// with the row's 16th best so far and, rarely, replaces that one in a list in shared memory. No score reaches
// memory, only the lists.
#pragma once

#include <type_traits>

#include "msa/sm90/index/index_key.cuh"
#include "sm90/convert.cuh"
#include "sm90/memory.cuh"
#include "sm90/mma.cuh"
#include "sm90/ptx.cuh"
#include "sm90/tensor_map.h"
#include "sm90/wgmma.cuh"

namespace msa::sm90 {

template <int kTilesPerWarpgroup, bool kAllScores, hopper::Element kKeyType, bool kOfShare = false>
struct IndexTileTraits {
  static constexpr bool kShare = kOfShare;  // blocks are places in the list of IndexTileParams::share
  static constexpr int kTiles = kTilesPerWarpgroup;
  static constexpr bool kDense = kAllScores;  // scores instead of lists
  static constexpr bool kFp8 = kKeyType == hopper::Element::kE4M3;
  static constexpr int kConsumers = 2;  // warpgroups
  static constexpr int kRows = kTiles * kConsumers * 64;
  static constexpr int kStageRows = kConsumers * 64;  // a stage holds one key block or this many rows of q
  static constexpr int kStageBytes = kBlock * kHeadDim * 2, kHalfBytes = kStageBytes / 2;
  static constexpr int kStages = kFp8 ? 4 : 5;
  static constexpr int kWideners = 3,
                       kRawBytes = kBlock * kHeadDim;  // fp8: warps that widen, each with a raw block
  // Blocks between two drains of the tensor cores. Lists and widening together leave no registers for more
  // than one.
  static constexpr int kRun = kTiles == 1 || (kFp8 && !kDense) ? 1 : 4;
  static constexpr int kThreads = (kConsumers + 1) * 128;
  static constexpr int kProducerRegisters = kFp8 ? 40 : 24, kConsumerRegisters = kFp8 ? 232 : 240;
  static_assert(kStageRows == kBlock, "q and key stages have one size");
  // The CTA owns what it was launched with, a multiple of 8 for each thread; asking for more would wait for
  // ever.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static_assert(kProducerRegisters + kConsumerRegisters * kConsumers <= kLaunchRegisters * (kConsumers + 1));

  struct Smem {
    uint8_t stages[kStages][kStageBytes];
    uint8_t raw[kFp8 ? kWideners : 1][kFp8 ? kRawBytes : 1024];
    uint64_t lists[kListLength][kConsumers * 128];  // [slot][thread]: a thread touches its own column only
    uint64_t full[kStages], empty[kStages];
    uint64_t raw_full[kWideners], raw_empty[kWideners];
  };
  static constexpr int kSmemBytes = sizeof(Smem);
};

// Calls body(piece, index) for each piece of this CTA, in order; every warp walks the same pieces.
template <typename F>
__device__ __forceinline__ void each_piece(const IndexSchedule& s, F&& body) {
  for (int window = 0; window < s.windows; ++window) {
    const int2 range = s.cta_pieces[window * s.ctas + blockIdx.x];
    int index = window * (s.tile_cap + s.ctas) + range.x;
    for (const int end = index + range.y; index < end; ++index) body(s.pieces[index], index);
  }
}

struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;

  template <int kStages>
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// Fetches q and keys; fp8 keys go to the wideners' raw blocks in turn, and to the ring from there.
template <typename T>
__device__ __forceinline__ void tile_producer(const IndexTileParams& p, const CUtensorMap& q,
                                              const CUtensorMap& keys, typename T::Smem& smem) {
  const int lane = threadIdx.x % 32;
  RingPosition ring, raw;
  const auto load = [&](const CUtensorMap& map, int row) {
    hopper::mbarrier_wait(&smem.empty[ring.stage], ring.parity ^ 1);
    if (lane == 0) {
      uint8_t* stage = smem.stages[ring.stage];
      hopper::mbarrier_arrive_expect(&smem.full[ring.stage], T::kStageBytes);
      hopper::tma_load_2d(stage, &map, &smem.full[ring.stage], 0, row);
      hopper::tma_load_2d(stage + T::kHalfBytes, &map, &smem.full[ring.stage], 64, row);
    }
    __syncwarp();
    ring.template advance<T::kStages>();
  };
  const auto load_raw = [&](int row) {
    hopper::mbarrier_wait(&smem.raw_empty[raw.stage], raw.parity ^ 1);
    if (lane == 0) {
      hopper::mbarrier_arrive_expect(&smem.raw_full[raw.stage], T::kRawBytes);
      hopper::tma_load_2d(smem.raw[raw.stage], &keys, &smem.raw_full[raw.stage], 0, row);
    }
    __syncwarp();
    raw.template advance<T::kWideners>();
    ring.template advance<T::kStages>();
  };
  const IndexBatch& b = p.batch;
  each_piece(p.schedule, [&](const IndexPiece& piece, int) {
    if constexpr (T::kFp8) {
      // Parity tells one lap of the ring from the next, no more: q must not be a lap ahead of blocks still to
      // be widened.
#pragma unroll 1
      for (int i = 0; i < T::kWideners; ++i)
        hopper::mbarrier_wait(&smem.raw_empty[i], i < raw.stage ? raw.parity : raw.parity ^ 1);
    }
#pragma unroll 1
    for (int tile = 0; tile < T::kTiles; ++tile) load(q, piece.q_row + tile * T::kStageRows);
    const int32_t* pages = b.block_table + int64_t{piece.request} * b.max_blocks + piece.first_block;
    int ahead = lane < piece.blocks ? pages[lane] : 0;  // 32 page ids at a time, read one batch early
    for (int base = 0; base < piece.blocks; base += 32) {
      const int current = ahead;
      const int next = base + 32 + lane;
      ahead = next < piece.blocks ? pages[next] : 0;
#pragma unroll 1
      for (int i = 0; i < min(32, piece.blocks - base); ++i) {
        const int row = __shfl_sync(kFullWarp, current, i) * kBlock;
        if constexpr (T::kFp8) {
          load_raw(row);
        } else {
          load(keys, row);
        }
      }
    }
  });
}

// Widener w turns every third key block, from raw block w, into the bf16 stage it belongs to.
template <typename T>
__device__ __forceinline__ void tile_widener(const IndexTileParams& p, typename T::Smem& smem, int widener) {
  const int lane = threadIdx.x % 32;
  RingPosition ring;
  uint32_t raw_parity = 0;
  int turn = 0;
  each_piece(p.schedule, [&](const IndexPiece& piece, int) {
    for (int tile = 0; tile < T::kTiles; ++tile) ring.template advance<T::kStages>();
    for (int block = 0; block < piece.blocks; ++block, ring.template advance<T::kStages>()) {
      const bool mine = turn == widener;
      if (++turn == T::kWideners) turn = 0;
      if (!mine) continue;
      hopper::mbarrier_wait(&smem.raw_full[widener], raw_parity);
      hopper::mbarrier_wait(&smem.empty[ring.stage], ring.parity ^ 1);
      raw_parity ^= 1;
      // Rows go in steps of 4: the swizzle's row bits change by 4, its chunk by one flipped bit. The upper
      // half's lanes store their second chunk first: other banks than the lower half's.
      const uint32_t row = lane / 8, chunk = lane % 8, upper = chunk / 4;  // a chunk is 16 channels
      uint32_t from = hopper::smem_address(smem.raw[widener]) + row * 128 + ((chunk ^ row) << 4);
      uint32_t to = hopper::smem_address(smem.stages[ring.stage]) + upper * T::kHalfBytes + row * 128 +
                    (((chunk % 4 * 2 + upper) ^ row) << 4);
#pragma unroll 1
      for (int step = 0; step < kBlock / 4; ++step, from = (from + 512) ^ 64, to = (to + 512) ^ 64) {
        const uint4 in = hopper::load_shared(from);
        uint4 out;
        hopper::widen_e4m3(upper ? in.z : in.x, out.x, out.y);
        hopper::widen_e4m3(upper ? in.w : in.y, out.z, out.w);
        hopper::store_shared(to, out);
        hopper::widen_e4m3(upper ? in.x : in.z, out.x, out.y);
        hopper::widen_e4m3(upper ? in.y : in.w, out.z, out.w);
        hopper::store_shared(to ^ 16, out);
      }
      hopper::fence_async_shared();
      __syncwarp();
      if (lane == 0) {
        hopper::mbarrier_arrive(&smem.raw_empty[widener]);
        hopper::mbarrier_arrive(&smem.full[ring.stage]);
      }
    }
  });
}

// One thread's row and its list of best blocks.
struct RowList {
  uint32_t column;  // shared memory: slot s is at column + s * kStride
  uint64_t worst;   // the list's smallest key, its slot in the low bits
  int own;          // the row's own block; negative: no row here

  template <int kStride>
  __device__ __forceinline__ void offer(float score, int block, int step, const IndexSelection& s) {
    const uint64_t key = make_key(score, block, own, s);
    if (step < kListLength) {
      hopper::store_shared_64(column + step * kStride, key | static_cast<uint32_t>(step));
      if (step == kListLength - 1) find_worst<kStride>();
    } else if (key > worst) {
      const uint32_t slot = static_cast<uint32_t>(worst) % kListLength;
      hopper::store_shared_64(column + slot * kStride, key | slot);
      find_worst<kStride>();
    }
  }

  template <int kStride>
  __device__ __forceinline__ void find_worst() {
    worst = hopper::load_shared_64(column);
#pragma unroll
    for (int slot = 1; slot < kListLength; ++slot) {
      const uint64_t key = hopper::load_shared_64(column + slot * kStride);
      worst = key < worst ? key : worst;
    }
  }
};

// Starts the product of 64 rows with the key block in `stage`.
template <typename T>
__device__ __forceinline__ void start_product(float (&acc)[64], const uint32_t (&a)[8][4],
                                              const uint8_t* stage) {
  const uint64_t descriptor = hopper::wgmma_descriptor(stage);
  __syncwarp();  // wgmma wants whole warps; branches on lanes came before
  hopper::wgmma_fence();
#pragma unroll
  for (int step = 0; step < 8; ++step)
    hopper::wgmma<128>(acc, a[step], descriptor + (step / 4) * (T::kHalfBytes >> 4) + (step % 4) * 2,
                       step != 0);
  hopper::wgmma_commit();
}

// Largest score of each row; even lanes get row (lane / 4), odd lanes row (lane / 4) + 8 of the warp's 16.
// With kMasked only the first visible0 and visible1 columns of the two rows count.
template <bool kMasked>
__device__ __forceinline__ float row_maximum(const float (&acc)[64], int visible0 = 0, int visible1 = 0) {
  const int lane = threadIdx.x % 32, column = (lane % 4) * 2;
  const auto value = [&](int j, int h, int e) {
    const float x = acc[j * 4 + h * 2 + e];
    return kMasked && j * 8 + column + e >= (h == 0 ? visible0 : visible1) ? kLowest : x;
  };
  float best[2][4];  // four chains each: one long chain would wait for its own latency
#pragma unroll
  for (int j = 0; j < 16; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float pair = fmaxf(value(j, h, 0), value(j, h, 1));
      best[h][j % 4] = j < 4 ? pair : fmaxf(best[h][j % 4], pair);
    }
  const float row0 = fmaxf(fmaxf(best[0][0], best[0][1]), fmaxf(best[0][2], best[0][3]));
  const float row1 = fmaxf(fmaxf(best[1][0], best[1][1]), fmaxf(best[1][2], best[1][3]));
  const bool odd = lane % 2;
  float mine = fmaxf(odd ? row1 : row0, __shfl_xor_sync(kFullWarp, odd ? row0 : row1, 1));
  mine = fmaxf(mine, __shfl_xor_sync(kFullWarp, mine, 2));
  return fmaxf(mine, kLowest);  // all NaN: lowest
}

template <int kStride>
__device__ __forceinline__ void store_list(const RowList& list, uint64_t* out, int count) {
  for (int slot = 0; slot < count; slot += 2) {
    const uint64_t first = hopper::load_shared_64(list.column + slot * kStride);
    const uint64_t second = slot + 1 < count ? hopper::load_shared_64(list.column + (slot + 1) * kStride) : 0;
    *reinterpret_cast<ulonglong2*>(out + slot) = make_ulonglong2(first, second);
  }
}

template <typename T>
__device__ __forceinline__ void tile_consumer(const IndexTileParams& p, typename T::Smem& smem,
                                              int warpgroup) {
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
  constexpr int kStride = T::kConsumers * 128 * sizeof(uint64_t);
  const IndexBatch& b = p.batch;
  RingPosition ring;
  RowList list{hopper::smem_address(&smem.lists[0][warpgroup * 128 + thread]), 0, 0};
  // Rows of this thread: in the accumulators, row + 8 h of each 64-row tile; as owner, one of all tiles'
  // rows.
  const int row = warpgroup * 64 + warp * 16 + lane / 4;
  const int owned = row + (lane % 2) * 8 + (T::kTiles == 2 ? (lane / 2 % 2) * T::kStageRows : 0);
  const bool owner = T::kTiles == 2 || lane % 4 < 2;
  uint32_t a[T::kTiles][8][4];

  each_piece(p.schedule, [&](const IndexPiece& piece, [[maybe_unused]] int index) {
#pragma unroll
    for (int tile = 0; tile < T::kTiles; ++tile) {
      hopper::mbarrier_wait(&smem.full[ring.stage], ring.parity);
      const int line = warpgroup * 64 + warp * 16 + lane % 16;
      const uint32_t base = hopper::smem_address(smem.stages[ring.stage]) + line * 128;
#pragma unroll
      for (int step = 0; step < 8; ++step)
        hopper::ldmatrix_x4(a[tile][step], base + (step / 4) * T::kHalfBytes +
                                               ((((step % 4) * 2 + lane / 16) ^ (line % 8)) << 4));
      __syncwarp();
      if (lane == 0) hopper::mbarrier_arrive_after(&smem.empty[ring.stage], a[tile][7][3]);
      ring.template advance<T::kStages>();
    }
    const auto position_of = [&](int r) { return piece.first_position + (piece.first_row + r) / b.heads; };
    const int first_masked = position_of(0) / kBlock;  // blocks before it are seen whole by every row
    [[maybe_unused]] const int32_t* ids = nullptr;     // of a share's blocks in the request
    if constexpr (T::kShare) ids = p.share.blocks + int64_t{piece.request} * b.max_blocks;
    const auto id_of = [&](int block) {
      if constexpr (T::kShare) {
        return ids[block];
      } else {
        return block;
      }
    };
    list.own = owner && owned < piece.rows ? position_of(owned) / kBlock : -1;

    const auto maximum = [&](const float(&values)[64], int tile, int block) {
      if (block < first_masked) return row_maximum<false>(values);
      // Rare; the piece is read again rather than kept in registers.
      const volatile IndexPiece& again = p.schedule.pieces[index];
      const int first = again.first_row + row + tile * T::kStageRows,
                key = block * kBlock - 1 - again.first_position;
      return row_maximum<true>(values, first / b.heads - key, (first + 8) / b.heads - key);
    };
    const auto wait_full = [&] { hopper::mbarrier_wait(&smem.full[ring.stage], ring.parity); };
    const auto release = [&](int stage) {
      __syncwarp();
      if (lane == 0) hopper::mbarrier_arrive(&smem.empty[stage]);
    };

    // Straight-line runs of kCount blocks: while one tile's maximum is taken, the other tile's product runs.
    // The products must not be in flight over a loop's back edge (ptxas would serialise them all), so each
    // run drains; the other warpgroup's products fill that gap.
    int block = piece.first_block;
    const int end = block + piece.blocks;
    const auto run = [&]<int kCount>(std::integral_constant<int, kCount>) {
      float acc[T::kTiles][64];
      wait_full();
#pragma unroll
      for (int tile = 0; tile < T::kTiles; ++tile)
        start_product<T>(acc[tile], a[tile], smem.stages[ring.stage]);
#pragma unroll
      for (int i = 0; i < kCount; ++i, ++block) {
        const int stage = ring.stage, id = id_of(block);
        ring.template advance<T::kStages>();
        float score = 0;
#pragma unroll
        for (int tile = 0; tile < T::kTiles; ++tile) {
          if (T::kTiles == 2 && (tile == 0 || i + 1 < kCount)) {
            hopper::wgmma_wait<1>();
          } else {
            hopper::wgmma_wait<0>();
          }
          hopper::wgmma_pin(acc[tile]);
          if (tile == T::kTiles - 1) release(stage);
          const float mine = maximum(acc[tile], tile, id);
          if (T::kTiles == 1 || lane / 2 % 2 == tile) score = mine;
          if (i + 1 < kCount) {
            if (tile == 0) wait_full();
            start_product<T>(acc[tile], a[tile], smem.stages[ring.stage]);
          }
        }
        if constexpr (T::kDense) {
          if (id <= list.own) p.scores[int64_t{piece.q_row + owned} * b.max_blocks + block] = score;
        } else {
          if (owner) list.offer<kStride>(score, id, block - piece.first_block, p.selection);
        }
      }
    };
    while (end - block >= T::kRun) run(std::integral_constant<int, T::kRun>{});
    while (block < end) run(std::integral_constant<int, 1>{});
    if (!T::kDense && owner)
      store_list<kStride>(list, p.lists + (int64_t{index} * T::kRows + owned) * kListLength,
                          min(piece.blocks, kListLength));
  });
}

template <typename T>
__global__ void __launch_bounds__(T::kThreads, 1)
    index_tile_kernel(const __grid_constant__ IndexTileParams p, const __grid_constant__ CUtensorMap q,
                      const __grid_constant__ CUtensorMap keys) {
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& smem = *reinterpret_cast<typename T::Smem*>(raw);
  if (threadIdx.x == 0) {
    for (int i = 0; i < T::kStages; ++i) {
      hopper::mbarrier_init(&smem.full[i], 1);
      hopper::mbarrier_init(&smem.empty[i], T::kConsumers * 4);
    }
    for (int i = 0; i < T::kWideners; ++i) {
      hopper::mbarrier_init(&smem.raw_full[i], 1);
      hopper::mbarrier_init(&smem.raw_empty[i], 1);
    }
    hopper::mbarrier_init_fence();
    hopper::prefetch_tensor_map(&q);
    hopper::prefetch_tensor_map(&keys);
  }
  __syncthreads();
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();  // after the wait: what the next kernel reads of the step's metadata is
                                    // complete
  const int warpgroup = threadIdx.x / 128;
  if (warpgroup == 0) {
    hopper::shrink_registers<T::kProducerRegisters>();
    if (threadIdx.x < 32) {
      tile_producer<T>(p, q, keys, smem);
    } else if constexpr (T::kFp8) {
      tile_widener<T>(p, smem, threadIdx.x / 32 - 1);
    }
  } else {
    hopper::grow_registers<T::kConsumerRegisters>();
    tile_consumer<T>(p, smem, warpgroup - 1);
  }
}

}  // namespace msa::sm90
