// SPDX-License-Identifier: Apache-2.0
// The matrix product on AMX tiles: C^T = W X^T. W's rows are the A operand as they lie in memory, X is packed
// once into B tiles, a C tile holds 16 outputs x 16 rows. Columns of a tile are independent and each (output,
// row) has one accumulator that takes k in ascending steps of 32, so a row's bits do not depend on how many
// rows share the call, nor on which of the two paths below computed it.
//
//   stream   up to 32 rows: the weights go from memory straight into tiles, codes by way of a few KiB of L1
//   blocked  everything else: a strip of weights is copied (or dequantised) into tile order, one block of k
//   at a time
#include <cstring>

#include "base/math.h"
#include "msa/common/amx.h"
#include "ops/cpu/gemm/dequantise_bf16.h"
#include "ops/cpu/kernels.h"

namespace sparrow::ops::cpu {
namespace {

constexpr int64_t kTile = 16;  // rows of a tile, and columns of a C tile
constexpr int64_t kStep = 32;  // k of one tile product
constexpr int64_t kTileBytes = 1024;
// k steps of a block: two B columns of them fill two thirds of the L1 cache.
constexpr int64_t kBlockSteps = 16;
constexpr int64_t kStreamRows = 2 * kTile;
constexpr int64_t kPrefetchSteps = 8;
constexpr int64_t kWeightBlockBytes = kMaxStrip / kTile * kBlockSteps * kTileBytes;
constexpr int64_t kSumsBytes = kMaxStrip * kMaxRows * static_cast<int64_t>(sizeof(float));

int64_t steps_of(int64_t columns) {
  return ceil_div(columns, kStep);
}

// GCC's tile loads do not tell the compiler that they read memory: what they read must be stored by then.
void finish_stores() {
  asm volatile("" ::: "memory");
}

int64_t packed_bytes(int64_t rows, int64_t columns) {
  return ceil_div(rows, kTile) * steps_of(columns) * kTileBytes;
}

int64_t workspace_bytes(int64_t) {
  return kWeightBlockBytes + kSumsBytes;
}

void pack(const PackJob& job) {
  const int64_t steps = steps_of(job.columns), packed_steps = steps_of(job.packed_columns);
  alignas(64) char gathered[kTileBytes];
  for (int64_t row = 0; row < job.count; row += kTile) {
    const int rows = static_cast<int>(job.count - row < kTile ? job.count - row : kTile);
    char* to = static_cast<char*>(job.packed) +
               ((job.first_row + row) / kTile * packed_steps + job.first_column / kStep) * kTileBytes;
    for (int64_t step = 0; step < steps; ++step, to += kTileBytes) {
      const int64_t columns = job.columns - step * kStep < kStep ? job.columns - step * kStep : kStep;
      const __mmask32 valid = static_cast<__mmask32>((uint64_t{1} << columns) - 1);
      for (int r = 0; r < rows; ++r) {
        const uint16_t* from = static_cast<const uint16_t*>(job.rows[row + r]) + step * kStep;
        _mm512_store_si512(gathered + r * 64, _mm512_maskz_loadu_epi16(valid, from));
      }
      msa::amx::transpose_16x16(gathered, 64, rows, to, 64);
    }
  }
}

// C tiles 0-3 (outputs x rows: 0 1 / 2 3) += A tiles 4, 5 times B tiles 6, 7.
template <int kA, int kB>
inline __attribute__((always_inline)) void multiply_step(const void* a0, const void* a1, int64_t a_stride,
                                                         const void* b0, const void* b1) {
  _tile_loadd(4, a0, a_stride);
  _tile_loadd(6, b0, 64);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (kB == 2) {
    _tile_loadd(7, b1, 64);
    _tile_dpbf16ps(1, 4, 7);
  }
  if constexpr (kA == 2) {
    _tile_loadd(5, a1, a_stride);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (kB == 2) _tile_dpbf16ps(3, 5, 7);
  }
}

template <int kA, int kB>
inline void zero_sums() {
  _tile_zero(0);
  if constexpr (kB == 2) _tile_zero(1);
  if constexpr (kA == 2) _tile_zero(2);
  if constexpr (kA == 2 && kB == 2) _tile_zero(3);
}

template <int kA, int kB>
inline void load_sums(const char* sums) {
  finish_stores();
  _tile_loadd(0, sums, 64);
  if constexpr (kB == 2) _tile_loadd(1, sums + kTileBytes, 64);
  if constexpr (kA == 2) _tile_loadd(2, sums + 2 * kTileBytes, 64);
  if constexpr (kA == 2 && kB == 2) _tile_loadd(3, sums + 3 * kTileBytes, 64);
}

template <int kA, int kB>
inline void store_sums(char* sums) {
  _tile_stored(0, sums, 64);
  if constexpr (kB == 2) _tile_stored(1, sums + kTileBytes, 64);
  if constexpr (kA == 2) _tile_stored(2, sums + 2 * kTileBytes, 64);
  if constexpr (kA == 2 && kB == 2) _tile_stored(3, sums + 3 * kTileBytes, 64);
}

// Stores C tiles into c[row][output].
template <int kA, int kB>
inline void finish_sums(float* c, int64_t c_stride) {
  alignas(64) char sums[4 * kTileBytes];
  store_sums<kA, kB>(sums);
  for (int a = 0; a < kA; ++a)
    for (int b = 0; b < kB; ++b)
      msa::amx::transpose_16x16(sums + (2 * a + b) * kTileBytes, 64, kTile,
                                c + b * kTile * c_stride + a * kTile,
                                c_stride * static_cast<int64_t>(sizeof(float)));
}

const char* packed_group(const StripJob& job, int part, int64_t row) {
  return static_cast<const char*>(job.packed_at(part)) +
         (job.first_row + row) / kTile * steps_of(job.part_columns()) * kTileBytes;
}

template <int kA, int kB>
void stream_tiles(const StripJob& job, int part, int64_t output) {
  const int64_t stride = job.weight.stride, columns = job.part_columns(), full_steps = columns / kStep;
  const char* a =
      static_cast<const char*>(job.weight.values) + (job.first_output + output) * stride + part * columns * 2;
  const char *b0 = packed_group(job, part, 0), *b1 = kB == 2 ? packed_group(job, part, kTile) : b0;
  zero_sums<kA, kB>();
  for (int64_t step = 0; step < full_steps; ++step) {
    const int64_t at = step * kStep * 2;
    // Runs of one row, so that memory sees bursts and not a line from each of 32 pages.
    if (step % kPrefetchSteps == 0) {
      const int64_t ahead = at + kPrefetchSteps * 64;
      const int64_t lines = (job.weight.columns - part * columns) / kStep - step - kPrefetchSteps;
      for (int r = 0; r < kA * kTile; ++r)
        for (int64_t line = 0; line < lines && line < kPrefetchSteps; ++line)
          _mm_prefetch(a + r * stride + ahead + line * 64, _MM_HINT_T1);
    }
    multiply_step<kA, kB>(a + at, a + kTile * stride + at, stride, b0 + step * kTileBytes,
                          b1 + step * kTileBytes);
  }
  const int64_t left = columns - full_steps * kStep;
  if (left > 0) {
    alignas(64) char tail[2 * kTileBytes];
    const __mmask32 valid = static_cast<__mmask32>((uint64_t{1} << left) - 1);
    for (int r = 0; r < kA * kTile; ++r)
      _mm512_store_si512(tail + r * 64,
                         _mm512_maskz_loadu_epi16(valid, a + r * stride + full_steps * kStep * 2));
    finish_stores();
    multiply_step<kA, kB>(tail, tail + kTileBytes, 64, b0 + full_steps * kTileBytes,
                          b1 + full_steps * kTileBytes);
  }
  finish_sums<kA, kB>(job.c + part * job.c_part + output, job.c_stride);
}

// A block takes a short run of every row, too short for the hardware to see a pattern: ask for the next one
// ourselves. `left` columns follow this one's.
void prefetch_next_block(MatrixFormat format, const char* row, int64_t left, int64_t steps) {
  const char* next = row + value_bytes(format, steps * kStep);
  const int64_t bytes = value_bytes(format, left < steps * kStep ? left : steps * kStep);
  for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(next + i, _MM_HINT_T1);
}

// k steps of one output's weights into its row of the tiles, `left` columns of them.
void copy_row(const char* from, int64_t left, int64_t steps, char* row) {
  for (int64_t s = 0; s < steps; ++s, left -= kStep) {
    const __mmask32 valid = left >= kStep ? ~__mmask32{0} : static_cast<__mmask32>((uint64_t{1} << left) - 1);
    _mm512_store_si512(row + s * kTileBytes, _mm512_maskz_loadu_epi16(valid, from + s * kStep * 2));
  }
}

template <MatrixFormat kFormat>
void expand_row(const char* values, const uint8_t* scales, int64_t steps, char* row) {
  const auto* from = reinterpret_cast<const uint8_t*>(values);
  constexpr int64_t kBytes = value_bytes(kFormat, kStep);
  int64_t s = 0;
  for (; s + 2 <= steps; s += 2)
    Dequantiser<kFormat>::row(from + s * kBytes, scales + s, row + s * kTileBytes,
                              row + (s + 1) * kTileBytes);
  if (s < steps)
    _mm512_store_si512(row + s * kTileBytes, Dequantiser<kFormat>::chunk(from + s * kBytes, scales[s]));
}

// As stream_tiles(), of codes: a few steps of k are dequantised into the L1 cache and used at once.
template <MatrixFormat kFormat, int kA, int kB>
void stream_codes(const StripJob& job, int part, int64_t output) {
  const WeightView& w = job.weight;
  const int64_t all_steps = job.part_columns() / kStep;  // whole ones: a scale belongs to 32
  const char *b0 = packed_group(job, part, 0), *b1 = kB == 2 ? packed_group(job, part, kTile) : b0;
  char* const tiles = static_cast<char*>(job.workspace);  // [tile of outputs][step]
  zero_sums<kA, kB>();
  for (int64_t first = 0; first < all_steps; first += kPrefetchSteps) {
    const int64_t steps = all_steps - first < kPrefetchSteps ? all_steps - first : kPrefetchSteps;
    for (int64_t r = 0; r < kA * kTile; ++r) {
      const int64_t row = job.first_output + output + r;
      const int64_t step = part * all_steps + first;
      const char* from =
          static_cast<const char*>(w.values) + row * w.stride + value_bytes(kFormat, step * kStep);
      prefetch_next_block(kFormat, from, w.columns - (step + steps) * kStep, steps);
      expand_row<kFormat>(from, w.scales + row * w.scale_stride + step, steps,
                          tiles + r / kTile * kPrefetchSteps * kTileBytes + r % kTile * 64);
    }
    finish_stores();
    for (int64_t s = 0; s < steps; ++s)
      multiply_step<kA, kB>(tiles + s * kTileBytes, tiles + (kPrefetchSteps + s) * kTileBytes, 64,
                            b0 + (first + s) * kTileBytes, b1 + (first + s) * kTileBytes);
    finish_stores();  // of the next steps, into the same memory: none before these loads
  }
  finish_sums<kA, kB>(job.c + part * job.c_part + output, job.c_stride);
}

template <int kA, int kB>
void stream_tile(const StripJob& job, int64_t output) {
  for (int part = 0; part < job.parts; ++part) switch (job.weight.format) {
      case MatrixFormat::kMxfp8:
        stream_codes<MatrixFormat::kMxfp8, kA, kB>(job, part, output);
        break;
      case MatrixFormat::kMxfp4:
        stream_codes<MatrixFormat::kMxfp4, kA, kB>(job, part, output);
        break;
      default:
        stream_tiles<kA, kB>(job, part, output);
    }
}

// Outputs in whole tiles.
void stream(const StripJob& job, int64_t outputs) {
  const bool two = job.rows > kTile;
  for (int64_t o = 0; o < outputs; o += 2 * kTile) {
    if (outputs - o >= 2 * kTile)
      two ? stream_tile<2, 2>(job, o) : stream_tile<2, 1>(job, o);
    else
      two ? stream_tile<1, 2>(job, o) : stream_tile<1, 1>(job, o);
  }
}

// Puts k steps [first, first + steps) of a part of the strip's weights into tile order: [tile of
// outputs][step]. Outputs past the strip and columns past the part are zeros.
void pack_weights(const StripJob& job, int part, int64_t first, int64_t steps, char* to) {
  const WeightView& w = job.weight;
  const int64_t column = part * job.part_columns() + first * kStep;
  const int64_t padded = round_up(job.outputs, kTile);
  for (int64_t o = 0; o < padded; ++o) {
    char* row = to + o / kTile * kBlockSteps * kTileBytes + o % kTile * 64;
    if (o >= job.outputs) {
      for (int64_t s = 0; s < steps; ++s) _mm512_store_si512(row + s * kTileBytes, _mm512_setzero_si512());
      continue;
    }
    const char* from = static_cast<const char*>(w.values) + (job.first_output + o) * w.stride +
                       value_bytes(w.format, column);
    prefetch_next_block(w.format, from, w.columns - column - steps * kStep, steps);
    const auto scales = [&] { return w.scales + (job.first_output + o) * w.scale_stride + column / kStep; };
    if (w.format == MatrixFormat::kMxfp8)
      expand_row<MatrixFormat::kMxfp8>(from, scales(), steps, row);
    else if (w.format == MatrixFormat::kMxfp4)
      expand_row<MatrixFormat::kMxfp4>(from, scales(), steps, row);
    else
      copy_row(from, job.part_columns() - first * kStep, steps, row);
  }
  finish_stores();
}

template <int kA, int kB>
void block_tiles(const StripJob& job, int part, const char* a, int64_t output, int64_t row, int64_t first,
                 int64_t steps, char* sums) {
  const char* b0 = packed_group(job, part, row) + first * kTileBytes;
  const char* b1 = kB == 2 ? packed_group(job, part, row + kTile) + first * kTileBytes : b0;
  const char* a1 = a + kBlockSteps * kTileBytes;
  if (first == 0)
    zero_sums<kA, kB>();
  else
    load_sums<kA, kB>(sums);
  for (int64_t s = 0; s < steps; ++s)
    multiply_step<kA, kB>(a + s * kTileBytes, a1 + s * kTileBytes, 64, b0 + s * kTileBytes,
                          b1 + s * kTileBytes);
  if (first + steps == steps_of(job.part_columns()))
    finish_sums<kA, kB>(job.c + part * job.c_part + row * job.c_stride + output, job.c_stride);
  else
    store_sums<kA, kB>(sums);
}

void blocked(const StripJob& job, int part) {
  const int64_t all_steps = steps_of(job.part_columns());
  char* weights = static_cast<char*>(job.workspace);
  for (int64_t first = 0; first < all_steps; first += kBlockSteps) {
    const int64_t steps = all_steps - first < kBlockSteps ? all_steps - first : kBlockSteps;
    pack_weights(job, part, first, steps, weights);
    char* sums = weights + kWeightBlockBytes;
    for (int64_t row = 0; row < job.rows; row += 2 * kTile)
      for (int64_t o = 0; o < job.outputs; o += 2 * kTile, sums += 4 * kTileBytes) {
        const char* a = weights + o / kTile * kBlockSteps * kTileBytes;
        const bool two_a = job.outputs - o > kTile, two_b = job.rows - row > kTile;
        if (two_a && two_b)
          block_tiles<2, 2>(job, part, a, o, row, first, steps, sums);
        else if (two_a)
          block_tiles<2, 1>(job, part, a, o, row, first, steps, sums);
        else if (two_b)
          block_tiles<1, 2>(job, part, a, o, row, first, steps, sums);
        else
          block_tiles<1, 1>(job, part, a, o, row, first, steps, sums);
      }
  }
}

void multiply(const StripJob& job) {
  const msa::amx::TileScope tiles;
  finish_stores();
  StripJob rest = job;
  if (job.rows <= kStreamRows) {
    // A last tile with missing outputs goes the other way, which never reads past the matrix.
    const int64_t whole = job.outputs / kTile * kTile;
    stream(job, whole);
    rest.first_output += whole;
    rest.outputs -= whole;
    rest.c += whole;
  }
  for (int part = 0; part < job.parts && rest.outputs > 0; ++part) blocked(rest, part);
}

}  // namespace

constinit const GemmEngine kAmxGemm = {packed_bytes, workspace_bytes, pack, multiply};

}  // namespace sparrow::ops::cpu
