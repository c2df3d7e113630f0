// SPDX-License-Identifier: Apache-2.0
// Attention of units to one block with AMX. S^T = K Q^T has the keys of a page as rows, straight from memory,
// and the unit's 16 heads as columns: softmax is elementwise over rows with one head per lane. Two rows of p
// side by side are already a row of the B tile of O^T = V^T P^T; only V has to be transposed, once for all
// units of the block.
#include "msa/common/amx.h"
#include "msa/cpu/kernels_amx.h"

namespace msa::amx {
namespace {

constexpr int kTileBytes = 1024;
constexpr int kRowBytes = kHeadDim * 2;  // of a key, of a value, and (128 keys) of a row of V^T
constexpr int kSteps = 4;  // 32 elements each: of the head dimension in K Q^T, of the keys in V^T P^T

struct Scratch {
  alignas(64) uint8_t vt[kHeadDim][kBlock * 2];  // V^T, bf16
  alignas(64) float s[2][kBlock][16];
  alignas(64) uint8_t p[2][kSteps][kTileBytes];
};
static_assert(sizeof(Scratch) <= kScratchBytes);

// 2^x: 0 below -126. The polynomial is 2^f on [0, 1) to 3.4e-6, exact at both ends.
__m512 exp2_of(__m512 x) {
  const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_GT_OQ);
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 y = _mm512_set1_ps(0.0135557471f);
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.0520323693f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.2413797628f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.6930321208f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(normal, y, x);
}

// bf16 of two rows, interleaved: even keys in the low halves. Positive numbers only; ties go up.
__m512i interleave(__m512 even, __m512 odd) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(even), half), 16);
  return _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_add_epi32(_mm512_castps_si512(odd), half));
}

// Rows at and past `keys` count as zero: they may hold anything, and 0 * NaN would spread. The next block is
// fetched meanwhile: decode spends a block on one unit, less time than memory takes to deliver the next.
void transpose_values(const uint8_t* v, int keys, const uint8_t* next, Scratch& scratch) {
  const auto row = [&](int key, int dim) {
    return key < keys ? _mm512_loadu_si512(v + key * kRowBytes + dim * 2) : _mm512_setzero_si512();
  };
  constexpr int kFetchBytes = 2 * kBlock * kRowBytes / 16;  // of K and V, in each of the 16 steps
  for (int key = 0; key < kBlock; key += 32)
    for (int dim = 0; dim < kHeadDim; dim += 32) {
      if (next != nullptr) {
        for (int at = 0; at < kFetchBytes; at += 64) _mm_prefetch(next + at, _MM_HINT_T1);
        next += kFetchBytes;
      }
      __m512i low[16], high[16];
      for (int i = 0; i < 16; ++i) {
        const __m512i even = row(key + 2 * i, dim), odd = row(key + 2 * i + 1, dim);
        low[i] = _mm512_unpacklo_epi16(even, odd);
        high[i] = _mm512_unpackhi_epi16(even, odd);
      }
      transpose(low);
      transpose(high);
      // Unpacking works within 128 bits: low holds channels 0-3, 8-11, 16-19, 24-27 and high the others.
      for (int i = 0; i < 16; ++i) {
        const int channel = dim + i / 4 * 8 + i % 4;
        _mm512_store_si512(scratch.vt[channel] + key * 2, low[i]);
        _mm512_store_si512(scratch.vt[channel + 4] + key * 2, high[i]);
      }
    }
}

const uint8_t* q_tile(const AttendUnit& unit, int step) {
  return reinterpret_cast<const uint8_t*>(unit.q) + step * kTileBytes;
}

void multiply_keys(const uint8_t* k, const AttendUnit& a, const AttendUnit& b, Scratch& scratch) {
  for (int row = 0; row < kBlock; row += 32) {
    zero<0>();
    zero<1>();
    zero<2>();
    zero<3>();
    for (int step = 0; step < kSteps; ++step) {
      load<4>(k + row * kRowBytes + step * 64, kRowBytes);
      load<6>(q_tile(a, step), 64);
      load<7>(q_tile(b, step), 64);
      multiply_add<0, 4, 6>();
      multiply_add<1, 4, 7>();
      load<5>(k + (row + 16) * kRowBytes + step * 64, kRowBytes);
      multiply_add<2, 5, 6>();
      multiply_add<3, 5, 7>();
    }
    store<0>(scratch.s[0][row], 64);
    store<1>(scratch.s[1][row], 64);
    store<2>(scratch.s[0][row + 16], 64);
    store<3>(scratch.s[1][row + 16], 64);
  }
}

void multiply_keys(const uint8_t* k, const AttendUnit& unit, Scratch& scratch) {
  for (int row = 0; row < kBlock; row += 64) {
    zero<0>();
    zero<1>();
    zero<2>();
    zero<3>();
    for (int step = 0; step < kSteps; ++step) {
      const uint8_t* tile = k + row * kRowBytes + step * 64;
      load<6>(q_tile(unit, step), 64);
      load<4>(tile, kRowBytes);
      multiply_add<0, 4, 6>();
      load<5>(tile + 16 * kRowBytes, kRowBytes);
      multiply_add<1, 5, 6>();
      load<4>(tile + 32 * kRowBytes, kRowBytes);
      multiply_add<2, 4, 6>();
      load<5>(tile + 48 * kRowBytes, kRowBytes);
      multiply_add<3, 5, 6>();
    }
    store<0>(scratch.s[0][row], 64);
    store<1>(scratch.s[0][row + 16], 64);
    store<2>(scratch.s[0][row + 32], 64);
    store<3>(scratch.s[0][row + 48], 64);
  }
}

// Brings m up to date with the block's largest score, and l and o with m.
__m512 update_maximum(AttendUnit& unit, __m512 most) {
  if (unit.blocks == 0) {
    _mm512_store_ps(unit.m, most);
    _mm512_store_ps(unit.l, _mm512_setzero_ps());
    return most;
  }
  const __m512 before = _mm512_load_ps(unit.m);
  const __mmask16 grown = _mm512_cmp_ps_mask(most, _mm512_add_ps(before, _mm512_set1_ps(kSlack)), _CMP_GT_OQ);
  if (grown == 0) return before;
  const __m512 m = _mm512_mask_mov_ps(before, grown, most);
  const __m512 shrink = exp2_of(_mm512_sub_ps(before, m));
  _mm512_store_ps(unit.m, m);
  _mm512_store_ps(unit.l, _mm512_mul_ps(_mm512_load_ps(unit.l), shrink));
  for (int d = 0; d < kHeadDim; ++d)
    _mm512_store_ps(unit.o + d * 16, _mm512_mul_ps(_mm512_load_ps(unit.o + d * 16), shrink));
  return m;
}

// Turns s[][] of one unit into p as B tiles. m is kept to base 2.
void weigh(AttendUnit& unit, float (*s)[16], int keys, float scale, uint8_t* p) {
  for (int row = keys; row < kBlock; ++row) _mm512_store_ps(s[row], _mm512_set1_ps(-__builtin_inff()));
  __m512 most[4];
  for (int i = 0; i < 4; ++i) most[i] = _mm512_load_ps(s[i]);
  for (int row = 4; row < kBlock; row += 4)
    for (int i = 0; i < 4; ++i) most[i] = _mm512_max_ps(most[i], _mm512_load_ps(s[row + i]));
  const __m512 factor = _mm512_set1_ps(scale * 1.44269504f);
  const __m512 largest = _mm512_max_ps(_mm512_max_ps(most[0], most[1]), _mm512_max_ps(most[2], most[3]));
  const __m512 m = update_maximum(unit, _mm512_mul_ps(largest, factor));
  __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int row = 0; row < kBlock; row += 2) {
    const __m512 even = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(s[row]), factor, m));
    const __m512 odd = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(s[row + 1]), factor, m));
    sums[0] = _mm512_add_ps(sums[0], even);
    sums[1] = _mm512_add_ps(sums[1], odd);
    _mm512_store_si512(p + row * 32, interleave(even, odd));
  }
  _mm512_store_ps(unit.l, _mm512_add_ps(_mm512_load_ps(unit.l), _mm512_add_ps(sums[0], sums[1])));
}

void add_values(AttendUnit& a, AttendUnit& b, const Scratch& scratch) {
  for (int d = 0; d < kHeadDim; d += 32) {
    if (a.blocks == 0) {
      zero<0>();
      zero<2>();
    } else {
      load<0>(a.o + d * 16, 64);
      load<2>(a.o + (d + 16) * 16, 64);
    }
    if (b.blocks == 0) {
      zero<1>();
      zero<3>();
    } else {
      load<1>(b.o + d * 16, 64);
      load<3>(b.o + (d + 16) * 16, 64);
    }
    for (int step = 0; step < kSteps; ++step) {
      load<4>(scratch.vt[d] + step * 64, kRowBytes);
      load<6>(scratch.p[0][step], 64);
      load<7>(scratch.p[1][step], 64);
      multiply_add<0, 4, 6>();
      multiply_add<1, 4, 7>();
      load<5>(scratch.vt[d + 16] + step * 64, kRowBytes);
      multiply_add<2, 5, 6>();
      multiply_add<3, 5, 7>();
    }
    store<0>(a.o + d * 16, 64);
    store<1>(b.o + d * 16, 64);
    store<2>(a.o + (d + 16) * 16, 64);
    store<3>(b.o + (d + 16) * 16, 64);
  }
}

void add_values(AttendUnit& unit, const Scratch& scratch) {
  for (int d = 0; d < kHeadDim; d += 64) {
    float* o = unit.o + d * 16;
    if (unit.blocks == 0) {
      zero<0>();
      zero<1>();
      zero<2>();
      zero<3>();
    } else {
      load<0>(o, 64);
      load<1>(o + 256, 64);
      load<2>(o + 512, 64);
      load<3>(o + 768, 64);
    }
    for (int step = 0; step < kSteps; ++step) {
      load<6>(scratch.p[0][step], 64);
      load<4>(scratch.vt[d] + step * 64, kRowBytes);
      multiply_add<0, 4, 6>();
      load<5>(scratch.vt[d + 16] + step * 64, kRowBytes);
      multiply_add<1, 5, 6>();
      load<4>(scratch.vt[d + 32] + step * 64, kRowBytes);
      multiply_add<2, 4, 6>();
      load<5>(scratch.vt[d + 48] + step * 64, kRowBytes);
      multiply_add<3, 5, 6>();
    }
    store<0>(o, 64);
    store<1>(o + 256, 64);
    store<2>(o + 512, 64);
    store<3>(o + 768, 64);
  }
}

}  // namespace

void pack(AttendUnit& unit, const void* q) {
  for (int step = 0; step < kSteps; ++step)
    transpose_16x16(static_cast<const uint8_t*>(q) + step * 64, kRowBytes, unit.heads,
                    reinterpret_cast<uint8_t*>(unit.q) + step * kTileBytes, 64);
}

void attend(const AttendTask& task, void* memory) {
  Scratch& scratch = *static_cast<Scratch*>(memory);
  const uint8_t* k = static_cast<const uint8_t*>(task.k);
  transpose_values(static_cast<const uint8_t*>(task.v), task.keys, static_cast<const uint8_t*>(task.next),
                   scratch);
  const auto keys_of = [&](const AttendUnit& unit) {
    const int64_t after = unit.position - task.first_key;
    return after >= kBlock ? kBlock : static_cast<int>(after) + 1;
  };
  int i = 0;
  for (; i + 2 <= task.count; i += 2) {
    AttendUnit& a = task.units[task.list[i]];
    AttendUnit& b = task.units[task.list[i + 1]];
    multiply_keys(k, a, b, scratch);
    weigh(a, scratch.s[0], keys_of(a), task.scale, scratch.p[0][0]);
    weigh(b, scratch.s[1], keys_of(b), task.scale, scratch.p[1][0]);
    add_values(a, b, scratch);
    ++a.blocks;
    ++b.blocks;
  }
  if (i < task.count) {
    AttendUnit& unit = task.units[task.list[i]];
    multiply_keys(k, unit, scratch);
    weigh(unit, scratch.s[0], keys_of(unit), task.scale, scratch.p[0][0]);
    add_values(unit, scratch);
    ++unit.blocks;
  }
}

void merge(AttendUnit& into, const AttendUnit& from) {
  const __m512 m_into = _mm512_load_ps(into.m), m_from = _mm512_load_ps(from.m);
  const __m512 m = _mm512_max_ps(m_into, m_from);
  const __m512 a = exp2_of(_mm512_sub_ps(m_into, m)), b = exp2_of(_mm512_sub_ps(m_from, m));
  const auto add = [&](float* x, const float* y) {
    _mm512_store_ps(x, _mm512_fmadd_ps(_mm512_load_ps(y), b, _mm512_mul_ps(_mm512_load_ps(x), a)));
  };
  _mm512_store_ps(into.m, m);
  add(into.l, from.l);
  for (int d = 0; d < kHeadDim; ++d) add(into.o + d * 16, from.o + d * 16);
  into.blocks += from.blocks;
}

void finish(const AttendUnit& unit, void* out) {
  const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_load_ps(unit.l));
  for (int d = 0; d < kHeadDim; d += 16) {
    __m512i r[16];
    for (int i = 0; i < 16; ++i)
      r[i] = _mm512_castps_si512(_mm512_mul_ps(_mm512_load_ps(unit.o + (d + i) * 16), inverse));
    transpose(r);
    for (int head = 0; head < unit.heads; ++head) {
      const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_castsi512_ps(r[head]));
      __builtin_memcpy(static_cast<uint8_t*>(out) + head * kRowBytes + d * 2, &rounded, sizeof(rounded));
    }
  }
}

}  // namespace msa::amx
