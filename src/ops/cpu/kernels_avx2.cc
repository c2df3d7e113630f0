// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/gemm_simd.h"

namespace sparrow::ops::cpu {

constinit const Kernels kAvx2Kernels = {&RowSimd<msa::Avx2>::kTable, &GemmSimd<msa::Avx2>::kTable, nullptr};

}  // namespace sparrow::ops::cpu
