// SPDX-License-Identifier: Apache-2.0
// What each instruction set provides to the schedules of index.cc and attend.cc. Everything here is plain
// data and function pointers: files built for one instruction set share no inline function with the rest of
// the program.
#pragma once

#include <cstdint>

#include "msa/msa.h"

namespace msa {

inline constexpr int kUnitHeads = 16;      // query heads of a unit: the columns of an AMX tile
inline constexpr int kScoreColumns = 256;  // (query, index head) pairs scored together
inline constexpr int kScoreBlocks = 16;    // blocks scored together; their scores fill whole cache lines
inline constexpr int kSegmentBlocks = 64;  // dense attention is cut here into partial results, in every mode
inline constexpr int64_t kScratchBytes = 256 * 1024;  // a worker's buffer for either kernel, 64-byte aligned

// Index scores of a tile of columns against up to kScoreBlocks blocks: max over the visible keys of q . k.
// Column c belongs to the query at first_position + c / heads. NaN products are left out of the max; a block
// with nothing in it scores -infinity.
struct ScoreTask {
  const void* q = nullptr;  // [columns, kHeadDim]
  int columns = 0;          // <= kScoreColumns
  int heads = 0;
  int64_t first_position = 0;
  const void* k_pages = nullptr;
  int32_t pages[kScoreBlocks] = {};   // [num_blocks]
  int32_t blocks[kScoreBlocks] = {};  // [num_blocks] logical
  int num_blocks = 0;
  float* scores = nullptr;  // [columns, stride] out at [0, kScoreBlocks) of each
  int64_t stride = 0;
};

// Up to 16 query heads of one query that share a KV head, and what they have summed so far. The layout of q
// and o is the kernel's: AMX keeps o as [kHeadDim][16], the vector kernels as [16][kHeadDim].
struct alignas(64) AttendUnit {
  float q[kUnitHeads * kHeadDim];
  float o[kUnitHeads * kHeadDim];  // sum of p v
  float l[kUnitHeads];             // sum of p, taken before p is rounded
  float m[kUnitHeads];  // what the exponents are relative to: within kSlack of the largest score so far
  int64_t position;
  int32_t heads;
  int32_t blocks;  // summed so far; 0: o, l and m are not yet set
};

// o is rescaled only when a score exceeds m by more than this many powers of two: p stays far below overflow
// and most blocks leave o alone. The decision is each head's own, so it does not depend on the batch.
inline constexpr float kSlack = 8.0f;

// One block and the units that attend to it.
struct AttendTask {
  const void* k = nullptr;  // [kBlock, kHeadDim]
  const void* v = nullptr;
  const void* next = nullptr;  // K and then V of the item's next block, to be fetched ahead; nullptr: none
  int64_t first_key = 0;
  int keys = 0;  // rows of the page that hold keys of this request: the rest is never used
  float scale = 0;
  AttendUnit* units = nullptr;
  const int32_t* list = nullptr;  // [count] indices into units; all see at least the block's first key
  int count = 0;
};

struct Kernels {
  void (*open)();   // before a thread's first kernel of a region, and
  void (*close)();  // after its last: AMX keeps the tile unit configured in between
  void (*score)(const ScoreTask& task, void* scratch);
  void (*pack)(AttendUnit& unit, const void* q);  // q: [unit.heads, kHeadDim]
  void (*attend)(const AttendTask& task, void* scratch);
  void (*merge)(AttendUnit& into,
                const AttendUnit& from);              // neither is empty; `from` comes later in the sequence
  void (*finish)(const AttendUnit& unit, void* out);  // out: [unit.heads, kHeadDim]
};

// Tables of the sets compiled in. The last two are for bf16 only.
const Kernels& avx2_kernels(Type type);
const Kernels& avx512_kernels(Type type);
const Kernels& avx512bf16_kernels();
const Kernels& amx_kernels();

// The schedules: what runs where, and in which order.
int64_t index_bytes(const Plan& plan, const IndexParams& params, const Workers& workers);
void run_index(const Plan& plan, const IndexParams& params, const Kernels& kernels, const Workers& workers,
               void* workspace);
int64_t attend_bytes(const Plan& plan, const AttendParams& params, const Workers& workers);
void run_attend(const Plan& plan, const AttendParams& params, const Kernels& kernels, const Workers& workers,
                void* workspace);

}  // namespace msa
