// SPDX-License-Identifier: Apache-2.0
#include "msa/cpu/kernels_simd.h"

namespace msa {

const Kernels& avx512_kernels(Type type) {
  return type == Type::kF32 ? SimdKernels<Avx512, float>::kTable : SimdKernels<Avx512, uint16_t>::kTable;
}

}  // namespace msa
