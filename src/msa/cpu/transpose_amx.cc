// SPDX-License-Identifier: Apache-2.0
// Transposition through memory, for packing B tiles and for turning results round.
#include "msa/common/amx.h"

namespace msa::amx {

void transpose_16x16(const void* from, int64_t from_stride, int rows, void* to, int64_t to_stride) {
  __m512i r[16];
  const char* source = static_cast<const char*>(from);
  for (int i = 0; i < 16; ++i)
    r[i] = i < rows ? _mm512_loadu_si512(source + i * from_stride) : _mm512_setzero_si512();
  transpose(r);
  char* target = static_cast<char*>(to);
  for (int i = 0; i < 16; ++i) _mm512_storeu_si512(target + i * to_stride, r[i]);
}

}  // namespace msa::amx
