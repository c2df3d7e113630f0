// SPDX-License-Identifier: Apache-2.0
// The passes on AVX2: products of bytes and 16 bit weights in pairs (vpmaddwd), sums in 32 bits, which are
// exact in any order.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "media/resize/passes.h"

namespace sparrow {
namespace {

// Four pixels of 3 bytes lie in 12; a load takes 16.
constexpr int kLoad = 16;
constexpr int kRowsAtOnce = 4;

// Both halves hold the same 16 bytes: the lower one takes pixels 0 and 1 of them, the upper one 2 and 3,
// channel by channel, as pairs of 16 bits.
__m256i pixel_pairs(const uint8_t* from) {
  const __m256i order = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,  //
                                         6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), order);
}

// Weights 0 and 1 in every pair of the lower half, 2 and 3 in the upper one.
__m256i weight_pairs(const int16_t* weights) {
  int64_t four;
  std::memcpy(&four, weights, sizeof(four));
  const __m256i order = _mm256_setr_epi8(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3,  //
                                         4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7);
  return _mm256_shuffle_epi8(_mm256_set1_epi64x(four), order);
}

// The finished pixels of four rows, one in each 32 bits.
__m128i finish(const __m256i* sums, int precision) {
  const __m128i shift = _mm_cvtsi32_si128(precision);
  __m128i rows[kRowsAtOnce];
  for (int r = 0; r < kRowsAtOnce; ++r) {
    const __m128i both = _mm_add_epi32(_mm256_castsi256_si128(sums[r]), _mm256_extracti128_si256(sums[r], 1));
    rows[r] = _mm_sra_epi32(both, shift);
  }
  return _mm_packus_epi16(_mm_packs_epi32(rows[0], rows[1]), _mm_packs_epi32(rows[2], rows[3]));
}

// Four rows share the weights. Reads up to kLoad bytes from each group of four pixels.
void width_rows(const std::array<const uint8_t*, kRowsAtOnce>& in, const AxisWeights& axis,
                const std::array<uint8_t*, kRowsAtOnce>& out) {
  const __m256i half = _mm256_zextsi128_si256(_mm_set1_epi32(1 << (axis.precision - 1)));
  for (int x = 0; x < axis.outputs; ++x) {
    const int16_t* weights = axis.of(x);
    const int64_t begin = int64_t{3} * axis.first[x];
    __m256i sums[kRowsAtOnce] = {half, half, half, half};
    for (int j = 0; j < axis.count[x]; j += 4) {
      const __m256i pairs = weight_pairs(weights + j);
      for (int r = 0; r < kRowsAtOnce; ++r)
        sums[r] = _mm256_add_epi32(sums[r], _mm256_madd_epi16(pixel_pairs(in[r] + begin + 3 * j), pairs));
    }
    alignas(16) uint32_t pixels[kRowsAtOnce];
    _mm_store_si128(reinterpret_cast<__m128i*>(pixels), finish(sums, axis.precision));
    // Four bytes at once where the next pixel will overwrite the last of them.
    if (x + 1 < axis.outputs) {
      for (int r = 0; r < kRowsAtOnce; ++r) std::memcpy(out[r] + 3 * x, &pixels[r], 4);
    } else {
      for (int r = 0; r < kRowsAtOnce; ++r) std::memcpy(out[r] + 3 * x, &pixels[r], 3);
    }
  }
}

void width_pass(const uint8_t* in, int in_width, int rows, const AxisWeights& axis, uint8_t* out) {
  const int64_t in_stride = int64_t{3} * in_width, out_stride = int64_t{3} * axis.outputs;
  // The last rows are read from a copy with room behind it: a load may go 13 bytes past a row's end.
  const int padded = std::min<int64_t>(rows, kLoad / in_stride + 1);
  std::vector<uint8_t> tail(static_cast<size_t>(padded * in_stride + kLoad));
  std::memcpy(tail.data(), in + (rows - padded) * in_stride, static_cast<size_t>(padded * in_stride));
  const auto row_at = [&](int y) {
    return y < rows - padded ? in + y * in_stride : tail.data() + (y - (rows - padded)) * in_stride;
  };
  for (int y = 0; y < rows; y += kRowsAtOnce) {
    std::array<const uint8_t*, kRowsAtOnce> from;
    std::array<uint8_t*, kRowsAtOnce> to;
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int row = std::min(y + r, rows - 1);  // the last one again where there are not four
      from[r] = row_at(row), to[r] = out + row * out_stride;
    }
    width_rows(from, axis, to);
  }
}

// Sixteen columns of an output row.
void height_columns(const uint8_t* in, int64_t row_bytes, const int16_t* weights, int count, int precision,
                    uint8_t* out) {
  __m256i low = _mm256_set1_epi32(1 << (precision - 1)), high = low;
  for (int j = 0; j < count; j += 2) {
    const auto load = [&](int row) {
      return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + row * row_bytes)));
    };
    // Weights behind the last are zero, so its row may stand for the one that is not there.
    const __m256i a = load(j), b = load(std::min(j + 1, count - 1));
    int32_t two;
    std::memcpy(&two, weights + j, sizeof(two));
    const __m256i pair = _mm256_set1_epi32(two);
    low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), pair));
    high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), pair));
  }
  const __m128i shift = _mm_cvtsi32_si128(precision);
  // unpack and pack both work within halves of 128 bits: what one takes apart the other puts together.
  const __m256i words = _mm256_packs_epi32(_mm256_sra_epi32(low, shift), _mm256_sra_epi32(high, shift));
  const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), bytes);
}

void height_pass(const uint8_t* in, int64_t row_bytes, const AxisWeights& axis, uint8_t* out) {
  if (row_bytes < kLoad) return kScalarPasses.height(in, row_bytes, axis, out);
  for (int y = 0; y < axis.outputs; ++y, out += row_bytes) {
    const uint8_t* from = in + axis.first[y] * row_bytes;
    for (int64_t x = 0; x < row_bytes; x += kLoad) {
      const int64_t at = std::min(x, row_bytes - kLoad);  // the last columns twice
      height_columns(from + at, row_bytes, axis.of(y), axis.count[y], axis.precision, out + at);
    }
  }
}

}  // namespace

const ResizePasses kAvx2Passes{width_pass, height_pass};

}  // namespace sparrow
