// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/gemm_simd.h"

namespace sparrow::ops::cpu {

constinit const Kernels kAvx512Bf16Kernels = {&RowSimd<msa::Avx512>::kTable, &GemmSimd<msa::Avx512>::kTable,
                                              nullptr};

}  // namespace sparrow::ops::cpu
