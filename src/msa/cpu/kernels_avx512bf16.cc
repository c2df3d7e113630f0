// SPDX-License-Identifier: Apache-2.0
#include "msa/cpu/kernels_simd.h"

namespace msa {

const Kernels& avx512bf16_kernels() {
  return SimdKernels<Avx512Bf16, uint16_t>::kTable;
}

}  // namespace msa
