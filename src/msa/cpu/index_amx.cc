// SPDX-License-Identifier: Apache-2.0
// Index scores with AMX: C = K Q^T, so that 16 keys of a page are an A tile as they lie in memory and 16
// (query, head) columns are a B tile. A column's block score is then an elementwise max over the rows of C:
// no score matrix.
#include "msa/common/amx.h"
#include "msa/cpu/kernels_amx.h"

namespace msa::amx {
namespace {

constexpr int kTileBytes = 1024;
constexpr int kSteps = kHeadDim / 32;    // A tiles along the head dimension
constexpr int kRowBytes = kHeadDim * 2;  // of a key
constexpr int kColumnTiles = kScoreColumns / 16;

struct Scratch {
  alignas(64) uint8_t q[kColumnTiles + 1][kSteps][kTileBytes];  // one spare: tiles are multiplied in pairs
  alignas(64) float c[4][16][16];
  alignas(64) float scores[kColumnTiles + 1][kScoreBlocks][16];
};
static_assert(sizeof(Scratch) <= kScratchBytes);

// Products of 32 keys and 32 columns into c: (keys 0-15, tile 0), (keys 0-15, tile 1), (keys 16-31, tile 0),
// ...
void multiply(const uint8_t* k, const uint8_t (*q)[kSteps][kTileBytes], float (*c)[16][16]) {
  zero<0>();
  zero<1>();
  zero<2>();
  zero<3>();
  for (int step = 0; step < kSteps; ++step) {
    load<4>(k + step * 64, kRowBytes);
    load<6>(q[0][step], 64);
    load<7>(q[1][step], 64);
    multiply_add<0, 4, 6>();
    multiply_add<1, 4, 7>();
    load<5>(k + 16 * kRowBytes + step * 64, kRowBytes);
    multiply_add<2, 5, 6>();
    multiply_add<3, 5, 7>();
  }
  store<0>(c[0], 64);
  store<1>(c[1], 64);
  store<2>(c[2], 64);
  store<3>(c[3], 64);
}

// Max over the tile's rows. The running value is the second operand: a NaN product leaves it as it is.
__m512 max_rows(__m512 most, const float (*c)[16]) {
  __m512 other = _mm512_set1_ps(-__builtin_inff());
  for (int row = 0; row < 16; row += 2) {
    most = _mm512_max_ps(_mm512_load_ps(c[row]), most);
    other = _mm512_max_ps(_mm512_load_ps(c[row + 1]), other);
  }
  return _mm512_max_ps(other, most);
}

// The same over the rows below each column's limit, where the tile's first row is `first`.
__m512 max_visible_rows(__m512 most, const float (*c)[16], __m512i limits, int first) {
  for (int row = 0; row < 16; ++row) {
    const __mmask16 seen = _mm512_cmpgt_epi32_mask(limits, _mm512_set1_epi32(first + row));
    most = _mm512_mask_max_ps(most, seen, _mm512_load_ps(c[row]), most);
  }
  return most;
}

// Keys of the block that each of 16 columns sees.
__m512i limits_of(const ScoreTask& task, int block, int first_column) {
  alignas(64) int32_t limits[16];
  const int64_t before = task.first_position - int64_t{block} * kBlock;
  for (int i = 0; i < 16; ++i) {
    const int64_t keys = before + (first_column + i) / task.heads + 1;
    limits[i] = keys < 0 ? 0 : keys > kBlock ? kBlock : static_cast<int32_t>(keys);
  }
  return _mm512_load_si512(limits);
}

void score_block(const ScoreTask& task, int b, int tiles, Scratch& scratch) {
  const uint8_t* k = static_cast<const uint8_t*>(task.k_pages) + int64_t{task.pages[b]} * kBlock * kRowBytes;
  const int block = task.blocks[b];
  const bool whole =
      task.first_position >= int64_t{block + 1} * kBlock - 1;  // the first query sees all of it
  const uint8_t* next = b + 1 < task.num_blocks ? static_cast<const uint8_t*>(task.k_pages) +
                                                      int64_t{task.pages[b + 1]} * kBlock * kRowBytes
                                                : nullptr;
  for (int tile = 0; tile < tiles; tile += 2) {
    __m512 most[2] = {_mm512_set1_ps(-__builtin_inff()), _mm512_set1_ps(-__builtin_inff())};
    const __m512i limits[2] = {limits_of(task, block, tile * 16), limits_of(task, block, tile * 16 + 16)};
    for (int row = 0; row < kBlock; row += 32) {
      // Decode is bound by memory: fetch the next block while this one is in the tiles.
      if (next != nullptr && tile == 0)
        for (int at = 0; at < 32 * kRowBytes; at += 64)
          _mm_prefetch(next + row * kRowBytes + at, _MM_HINT_T1);
      multiply(k + row * kRowBytes, scratch.q + tile, scratch.c);
      for (int i = 0; i < 4; ++i)
        most[i % 2] = whole ? max_rows(most[i % 2], scratch.c[i])
                            : max_visible_rows(most[i % 2], scratch.c[i], limits[i % 2], row + i / 2 * 16);
    }
    _mm512_store_ps(scratch.scores[tile][b], most[0]);
    if (tile + 1 < tiles) _mm512_store_ps(scratch.scores[tile + 1][b], most[1]);
  }
}

}  // namespace

void score(const ScoreTask& task, void* memory) {
  Scratch& scratch = *static_cast<Scratch*>(memory);
  const uint8_t* q = static_cast<const uint8_t*>(task.q);
  const int tiles = (task.columns + 15) / 16;
  for (int tile = 0; tile < tiles + 1; ++tile)
    for (int step = 0; step < kSteps; ++step) {
      const int rows = task.columns - tile * 16 < 16 ? task.columns - tile * 16 : 16;
      transpose_16x16(q + int64_t{tile} * 16 * kRowBytes + step * 64, kRowBytes, rows, scratch.q[tile][step],
                      64);
    }
  for (int b = 0; b < task.num_blocks; ++b) score_block(task, b, tiles, scratch);
  for (int tile = 0; tile < tiles; ++tile) {
    __m512i r[16];
    for (int b = 0; b < kScoreBlocks; ++b)
      r[b] = b < task.num_blocks ? _mm512_load_si512(scratch.scores[tile][b]) : _mm512_setzero_si512();
    transpose(r);
    for (int i = 0; i < 16 && tile * 16 + i < task.columns; ++i)
      _mm512_storeu_si512(task.scores + (int64_t{tile} * 16 + i) * task.stride, r[i]);
  }
}

}  // namespace msa::amx
