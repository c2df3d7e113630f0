// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/gemm_simd.h"

namespace sparrow::ops::cpu {

constinit const Kernels kAvx512Kernels = {&RowSimd<msa::Avx512>::kTable, &GemmSimd<msa::Avx512>::kTable,
                                          nullptr};
constinit const Kernels kAmxKernels = {&RowSimd<msa::Avx512>::kTable, &GemmSimd<msa::Avx512>::kTable,
                                       &kAmxGemm};

}  // namespace sparrow::ops::cpu
