// SPDX-License-Identifier: Apache-2.0
#include "msa/cpu/kernels_simd.h"

namespace msa {

const Kernels& avx512bf16_kernels() {
  return avx512_kernels(Type::kBF16);
}

}  // namespace msa
