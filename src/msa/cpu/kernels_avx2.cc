// SPDX-License-Identifier: Apache-2.0
#include "msa/cpu/kernels_simd.h"

namespace msa {

const Kernels& avx2_kernels(Type type) {
  return type == Type::kF32 ? SimdKernels<Avx2, float>::kTable : SimdKernels<Avx2, uint16_t>::kTable;
}

}  // namespace msa
